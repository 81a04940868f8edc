"""Trees that jobs leave are removed whole, and nothing outside of them is."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.processes import workspace_removal
from solstice_orchestrator.processes.workspace_removal import WorkspaceRemoval
from tests.executor_harness import remove_nested


def removed(path: Path) -> int:
    """The exit code of the process that removes the tree."""
    return subprocess.run(
        [sys.executable, "-I", "-S", workspace_removal.__file__, str(path)], check=False
    ).returncode


def nest(path: Path, depth: int) -> None:
    """Make a chain of directories that is deeper than the longest path."""
    path.mkdir()
    above = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def test_a_tree_of_every_kind_of_file_is_removed(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    nest(tree, 2500)
    outside.mkdir(mode=0o500)
    (outside / "kept").touch()
    (tree / "locked" / "below").mkdir(parents=True)
    (tree / "locked" / "below" / "file").touch()
    os.mkfifo(tree / "fifo")
    for number, name in enumerate((b"\xff\xfe", b"-rf", b"a\nb", b"\x1b]0;t\x07", b" ", b"...")):
        (directory := tree / os.fsdecode(name)).mkdir()
        (directory / "link").symlink_to(outside)
        (directory / "loop").symlink_to("loop")
        directory.chmod(0o000 if number % 2 else 0o400)
    (tree / "locked" / "below").chmod(0)
    (tree / "locked").chmod(0)
    tree.chmod(0o500)
    try:
        assert removed(tree) == 0
        assert not tree.exists()
    finally:
        remove_nested(tree)
    assert (outside / "kept").exists()
    assert outside.stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("target", ["directory", "missing"])
def test_of_a_link_in_place_of_the_tree_only_the_link_is_removed(tmp_path: Path, target: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "kept").touch()
    (tmp_path / "tree").symlink_to(tmp_path / target)
    assert removed(tmp_path / "tree") == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "kept"]


def test_a_tree_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert removed(tmp_path / "tree") == 0


def test_the_work_grows_with_the_size_of_the_tree_and_not_with_its_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    for name in ("open", "rename", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, partial(counted, calls, getattr(os, name)))
    made = {}
    for depth in (100, 200):
        nest(tmp_path / "tree", depth)
        calls.clear()
        above = os.open(tmp_path, os.O_RDONLY)
        assert WorkspaceRemoval(above, "tree").run() == 0
        os.close(above)
        made[depth] = len(calls)
        assert not any("/" in os.fsdecode(given[0]) for given in calls[1:])
    assert made[200] < 2 * made[100]


def counted(calls: list[tuple[Any, ...]], call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    calls.append(given)
    return call(*given, **named)


def test_directories_that_become_links_meanwhile_lead_nowhere(tmp_path: Path) -> None:
    victim, above = tmp_path / "victim", os.open(tmp_path, os.O_RDONLY)
    (victim / "below").mkdir(parents=True)
    (victim / "below" / "kept").touch()
    (victim / "kept").touch()
    victim.chmod(0o500)
    for _ in range(10):
        names = [tmp_path / "tree" / str(one) / "a" for one in range(30)]
        for name in names:
            (name / "below").mkdir(parents=True)
            (name / "below" / "file").touch()
        swapping = threading.Thread(target=replace_by_links, args=(names, victim))
        swapping.start()
        WorkspaceRemoval(above, "tree").run()
        swapping.join()
        assert WorkspaceRemoval(above, "tree").run() == 0
        assert not (tmp_path / "tree").exists()
        assert sorted(path.name for path in victim.rglob("*")) == ["below", "kept", "kept"]
        assert victim.stat().st_mode & 0o777 == 0o500
    os.close(above)


def replace_by_links(names: list[Path], target: Path) -> None:
    """Move each directory away, and put a link in its place."""
    for name in names:
        with contextlib.suppress(OSError):
            name.rename(name.with_name("moved"))
            name.symlink_to(target)
