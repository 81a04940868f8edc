"""The job that is ended when the disk of the workspaces fills up."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.worker.executors.disk import SpaceAndInodes, culprit, outcome_of_culprit, size_of
from tests.executor_harness import remove_nested

A, B, C = Path("/jobs/a"), Path("/jobs/b"), Path("/jobs/c")
SIZES = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 1000))


@pytest.mark.parametrize(
    ("free", "sizes", "expected"),
    [
        (100, {A: 5000}, None),
        (99, {A: 5000}, A),
        (0, {A: 100, B: 300, C: 200}, B),
        (0, {A: 99}, None),
        (0, {}, None),
    ],
    ids=["room", "not enough", "the largest", "others fill the disk", "nobody runs"],
)
def test_who_has_to_go(free: int, sizes: dict[Path, int], expected: Path | None) -> None:
    assert culprit(free, 100, sizes) == expected


@given(st.integers(0, 2000), st.integers(1, 1000), SIZES)
def test_no_connection_is_closed_for_a_larger_one_or_while_there_is_room(
    free: int, reserve: int, sizes: dict[Path, int]
) -> None:
    guilty = culprit(free, reserve, sizes)
    if guilty is not None:
        assert free < reserve <= sizes[guilty] == max(sizes.values())
    else:
        assert free >= reserve or all(size < reserve for size in sizes.values())


PLENTY = 10**9


@pytest.mark.parametrize(
    ("free", "detail"),
    [
        (SpaceAndInodes(99, PLENTY), "the job's workspace is the largest"),
        (SpaceAndInodes(PLENTY, 9), "the job's workspace has the most files and directories: 70"),
        (SpaceAndInodes(100, 10), None),
    ],
    ids=["short of space", "short of inodes", "room"],
)
def test_a_disk_can_lack_space_or_inodes(free: SpaceAndInodes, detail: str | None) -> None:
    sizes = {A: SpaceAndInodes(500, 60), B: SpaceAndInodes(400, 70)}
    guilty = outcome_of_culprit(free, SpaceAndInodes(100, 10), sizes)
    if detail is None:
        assert guilty is None
    else:
        assert guilty is not None
        assert (guilty[0], detail in guilty[1].detail) == (A if free.inodes == PLENTY else B, True)


@given(st.integers(0, 2000), SIZES)
def test_without_a_reserve_no_job_is_ended(free: int, sizes: dict[Path, int]) -> None:
    assert culprit(free, 0, sizes) is None


def test_the_size_counts_the_whole_tree_and_no_link(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    for name in ("tree", *("d" for _ in range(1500))):
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    with os.fdopen(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=directory), "wb") as file:
        file.write(b"x" * 100_000)
        os.fsync(file)
    os.symlink("file", "link", dir_fd=directory)
    os.close(directory)
    (tmp_path / "tree" / "all").symlink_to("/")
    try:
        size = size_of(tmp_path)
        assert 100_000 <= size.size_bytes < 200_000
        assert size.inodes == 1504
    finally:
        remove_nested(tmp_path / "tree")
