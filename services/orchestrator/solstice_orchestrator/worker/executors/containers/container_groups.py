"""Name the control groups of containers, and remove those that podman left."""

import contextlib
import os
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")


def group_of(place: str, attempt: str) -> str:
    """Return the parent group of an attempt's containers; no two attempts share one."""
    return f"/solstice.{place}.{attempt}"


def groups_left(place: str, attempt: str = "*") -> list[Path]:
    """Return the groups of an orchestrator's attempts, in every hierarchy."""
    pattern = group_of(place, attempt).lstrip("/")
    return [*ROOT.glob(pattern), *ROOT.glob(f"*/{pattern}")]


def remove_groups(place: str, attempt: str = "*") -> None:
    """Remove the groups and all below them; those with processes stay."""
    for group in groups_left(place, attempt):
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
