"""Chooses where the servers of the tests write: in memory where possible.

None of their data outlives a test.

A server that is killed finds its files again; only the machine's own end would lose them. On a disk, making and
removing databases and the syncs of queues take half the time of the tests that use them.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
FREE_BYTES: Final = 4 << 30
"""Bytes that must be free in memory; containers often have 64 MB."""


def scratch_folder(name: str, *, synced: bool = False) -> Path:
    """A new folder for one server.

    With `synced` it is on a disk, for a test that measures what that costs.
    """
    in_memory = not synced and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE_BYTES
    return Path(tempfile.mkdtemp(prefix=f"solstice-{name}-", dir=MEMORY if in_memory else None))
