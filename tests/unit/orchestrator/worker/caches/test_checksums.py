"""The files that a key names have one digest."""

import hashlib
import os
from pathlib import Path

import pytest

from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.caches import checksums
from solstice_orchestrator.worker.caches.checksums import checksum
from solstice_orchestrator.worker.caches.packing import CacheRefused


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("a.lock", "b/c/d.lock", "b/e.txt", ".git/x.lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_names_and_contents_count_and_nothing_else(work: Path) -> None:
    source = WorkspaceFiles(work)
    one = checksum(source, ["a.lock"])
    assert one == hashlib.sha256(b"6:a.lock" + hashlib.sha256(b"a.lock").digest()).hexdigest()
    every = checksum(source, ["**/*.lock"])
    assert every == checksum(source, ["a.lock", "b/**/d.lock", "b/c/d.lock"])
    assert len({one, every, checksum(source, ["b/e.txt"])}) == 3
    os.utime(work / "a.lock", (1, 1))
    assert checksum(source, ["a.lock"]) == one
    (work / "a.lock").write_text("changed")
    assert checksum(source, ["a.lock"]) != one


def test_names_of_any_byte_count(work: Path) -> None:
    Path(os.fsdecode(os.fsencode(work) + b"/\xff\n.lock")).touch()
    assert checksum(WorkspaceFiles(work), ["*.lock"]) != checksum(WorkspaceFiles(work), ["a.lock"])


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("nothing", "no file of the checkout fits 'nothing'"),
        ("b", "no file of the checkout fits 'b'"),
        ("b/*.lock", "no file"),
        ("a.lock/x", "no file"),
        ("link", "link, which its key names, is a link"),
        ("links/*", "is a link"),
        ("pipe", "named pipe"),
    ],
)
def test_what_has_no_digest_is_named(work: Path, pattern: str, words: str) -> None:
    (work / "link").symlink_to("a.lock")
    (work / "links").mkdir()
    (work / "links/x").symlink_to("/etc/passwd")
    os.mkfifo(work / "pipe")
    with pytest.raises(CacheRefused) as caught:
        checksum(WorkspaceFiles(work), ["a.lock", pattern])
    assert words in str(caught.value)


def test_a_folder_that_is_a_link_is_not_entered(work: Path) -> None:
    (work / "way").symlink_to("/etc")
    with pytest.raises(CacheRefused, match="no file"):
        checksum(WorkspaceFiles(work), ["way/passwd"])
    with pytest.raises(CacheRefused, match="no file"):
        checksum(WorkspaceFiles(work), ["way/*"])


def test_there_are_limits(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "MAX_BYTES", 7)
    with pytest.raises(CacheRefused, match="more than 0 MiB"):
        checksum(WorkspaceFiles(work), ["a.lock", "b/e.txt"])
    monkeypatch.setattr(checksums, "MAX_FILES", 1)
    with pytest.raises(CacheRefused, match="more than 1 files"):
        checksum(WorkspaceFiles(work), ["**/*.lock"])
    monkeypatch.setattr(checksums, "MAX_ENTRIES", 3)
    with pytest.raises(CacheRefused, match="too many"):
        checksum(WorkspaceFiles(work), ["**/*.lock"])
