"""A file that is written whole never appears half, and replaces another at the end."""

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from solstice_common.runtime.replaced_file import replace_file, written_whole


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit the size of files: a full disk fails a write alike."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("old", [b"old\n", None])
def test_a_full_disk_leaves_what_was_there(old: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "out"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(OSError, match="too large") as failed, written_whole(path) as file:
        file.write(b"x" * 100_000)
    assert failed.value.filename == str(path)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == ({} if old is None else {path: old})


def test_without_its_folder_the_error_has_the_name_that_was_given(tmp_path: Path) -> None:
    path = tmp_path / "none" / "out"
    with pytest.raises(FileNotFoundError) as failed, written_whole(path):
        pass
    assert failed.value.filename == str(path)


def test_it_is_on_the_disk_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    with written_whole(tmp_path / "out"):
        pass
    assert synced == [str(tmp_path / "out.part"), str(tmp_path)]


def test_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with written_whole(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reading = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reading.start()
    with written_whole(pipe) as file:
        file.write(b"lines")
    reading.join(30)
    assert read == [b"lines"]
    assert pipe.is_fifo()


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_no_part_of_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    replace_file(path, lambda: b"old")
    with pytest.raises(OSError, match="too large"):
        replace_file(path, lambda: b"x" * 100_000)
    assert path.read_bytes() == b"old"
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", "keys.json.lock"}
