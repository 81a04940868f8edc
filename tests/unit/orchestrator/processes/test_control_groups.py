"""The control group of a process, from Linux's files."""

import os
from pathlib import Path

import pytest

from solstice_orchestrator.processes.control_groups import ControlGroup, group_directory, left_by
from tests.executor_harness import remove_nested

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = [
    "30 24 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755",
    "31 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    "32 30 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
]
SERVICE = "0::/system.slice/orchestrator.service"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "directory"),
    [
        ([SERVICE], [V2], "/sys/fs/cgroup/system.slice/orchestrator.service"),
        (["0::/"], [V2], "/sys/fs/cgroup"),
        (["3:cpu:/a", SERVICE], HYBRID, "/sys/fs/cgroup/unified/system.slice/orchestrator.service"),
        ([SERVICE], [V2.replace("0:26 /", "0:26 /system.slice")], "/sys/fs/cgroup/orchestrator.service"),
        (["0::/a b"], [V2.replace("/sys/fs/cgroup", "/with\\040space")], "/with space/a b"),
        ([SERVICE], [V2.replace("0:26 /", "0:26 /user.slice")], None),
        (["0::/../other"], [V2], None),
        (["3:cpu:/a", "1:name=systemd:/b"], HYBRID, None),
        ([SERVICE], HYBRID[::2], None),
        ([], [], None),
    ],
    ids=[
        "service", "root", "beside version 1", "part of the hierarchy", "space in the path",
        "another part", "outside the namespace", "version 1 alone", "not mounted", "no Linux",
    ],
)  # fmt: skip
def test_the_directory_of_our_group_is_found(
    cgroup: list[str], mounts: list[str], directory: str | None
) -> None:
    assert group_directory(cgroup, mounts) == directory


@pytest.mark.parametrize(
    "reported", ["", "solstice-abc", "/sys/fs/cgroup", "/sys/fs/cgroup/solstice-other", "/a/solstice-abc/b"]
)
def test_no_other_group_passes_for_what_a_killed_orchestrator_left(reported: str) -> None:
    assert left_by("abc", reported) is None
    path = "/sys/fs/cgroup/x/solstice-abc"
    assert left_by("abc", path) == ControlGroup(Path(path))


def test_groups_below_are_removed_however_deep_a_job_nests_them(tmp_path: Path) -> None:
    """Directories stand for groups here: both can be removed once they are empty."""
    group = ControlGroup(tmp_path / "group")
    above = os.open(tmp_path, os.O_RDONLY)
    for name in ("group", *("g" * 100 for _ in range(1200))):
        os.mkdir(name, dir_fd=above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    try:
        assert group.remove()
        assert not group.path.exists()
        assert group.remove()
    finally:
        remove_nested(group.path)
