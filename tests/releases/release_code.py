"""Takes the code of the previous release out of this repository's history.

A clone may lack it (a CI server's often has the newest commit alone); what needs it is skipped there, and the recorded
databases of `tests/releases/0.1.0` stand in for it.
"""

import subprocess
from pathlib import Path
from typing import Final

VERSION: Final = "0.1.0"
REVISION: Final = "8136398117d66a35ee1d0096074ec020cceb4bc8"
"""The commit that was released under that version."""
ROOT: Final = Path(__file__).parents[2]
# A shallow clone, as CI may make, has not the code of the release. What was recorded of it is tested there, too.
ABSENT: Final = f"not asked for: the history of this clone does not reach release {VERSION}"
PATHS: Final = ("common", "services/forge-integration", "services/orchestrator", "services/cli", "")


def is_in_history() -> bool:
    """Whether this repository has the commit of the release with its files."""
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{REVISION}:pyproject.toml"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unpack(folder: Path) -> Path:
    """Write the release's files into that folder."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", REVISION], capture_output=True, check=True
    ).stdout
    folder.mkdir(parents=True, exist_ok=True)
    # The filters of tarfile came with Python 3.11.4; that of Debian 12 is older.
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def python_path(folder: Path) -> str:
    """The PYTHONPATH by which a Python finds that code before the installed one."""
    return ":".join(str(folder / each) for each in PATHS)
