"""Name and make the control groups of containers, and remove those that podman left."""

import contextlib
import glob
import os
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = "solstice.self"
"""The group of an orchestrator without root, beside those of its attempts."""
CONTROLLERS: Final = "+cpu +memory +pids"


def group_of(workspaces: str, attempt: str, base: str = "") -> str:
    """Return the parent group of an attempt's containers, below `base`; no two attempts share one."""
    return f"{base}/solstice.{workspaces}.{attempt}"


def groups_left(workspaces: str, attempt: str = "*", base: str = "") -> list[Path]:
    """Return the groups of an orchestrator's attempts below `base`, in every hierarchy."""
    pattern = group_of(workspaces, attempt, base).lstrip("/")
    # Not `Path.glob`, which fails when any group goes away meanwhile.
    found = [*glob.glob(pattern, root_dir=ROOT), *glob.glob(f"*/{pattern}", root_dir=ROOT)]  # noqa: PTH207  as above
    return [ROOT / name for name in found]


def remove_groups(workspaces: str, attempt: str = "*", base: str = "") -> None:
    """Remove the groups and all below them; those with processes stay."""
    for group in groups_left(workspaces, attempt, base):
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()


def make_group(group: str) -> None:
    """Make a group whose members may have limits, in version 2 of the interface."""
    directory = ROOT / group.lstrip("/")
    directory.mkdir()
    (directory / "cgroup.subtree_control").write_text(CONTROLLERS)


def delegated_base(group: Path) -> str:
    """Let groups below our own one, which is `group`, have limits; return its path.

    A group with such groups has no process (cgroups(7)), so all processes of ours move into a group beside them.
    OSError: the group does not belong to us, or lacks a controller.
    """
    if group.name == OWN:
        # Moved before, by this process or by one that started it.
        group = group.parent
    own = group / OWN
    own.mkdir(exist_ok=True)
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (own / "cgroup.procs").write_text(pid)
    (group / "cgroup.subtree_control").write_text(CONTROLLERS)
    path = group.relative_to(ROOT).as_posix()
    return "" if path == "." else f"/{path}"
