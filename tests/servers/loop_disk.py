"""Gives a server a disk in a file, which has what was synced.

The kernel writes to the file what was synced, and the rest some seconds later.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

SIZE: Final = 1 << 30
"""Most of it is a hole in the file."""
UNMOUNT_SECONDS: Final = 30.0


class LoopDisk:
    """An ext4 in a file, mounted at `.folder`; it needs root and loop devices."""

    def __init__(self, directory: Path) -> None:
        self._image, self._copy = directory / "disk", directory / "disk-after"
        self.folder = directory / "mounted"

    @classmethod
    @contextmanager
    def mounted(cls, directory: Path) -> Iterator[Self]:
        """A new and empty disk during the block."""
        disk = cls(directory)
        disk.folder.mkdir()
        with disk._image.open("wb") as image:
            image.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", disk._image], check=True)
        disk._mount()
        try:
            yield disk
        finally:
            disk._unmount()

    def sync(self) -> None:
        """Write everything, as some minutes do."""
        subprocess.run(["sync", "--file-system", self.folder], check=True)

    def cut(self) -> None:
        """Copy what a power cut now would leave.

        The server has to stand still.
        """
        subprocess.run(["cp", "--sparse=always", self._image, self._copy], check=True)

    def restore(self) -> None:
        """Mount what the power cut left. The server has to be gone."""
        self._unmount()
        self._copy.rename(self._image)
        self._mount()

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self.folder], check=True)
        # RabbitMQ 4 runs as a user of its own.
        self.folder.chmod(0o777)
        shutil.rmtree(self.folder / "lost+found", ignore_errors=True)

    def _unmount(self) -> None:
        deadline = time.monotonic() + UNMOUNT_SECONDS
        while (ran := subprocess.run(["umount", self.folder], capture_output=True, check=False)).returncode:
            assert time.monotonic() < deadline, ran.stderr
            time.sleep(0.1)
