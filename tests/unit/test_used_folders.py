"""Reading a folder passes over what others remove meanwhile, and over nothing else."""

import os
from pathlib import Path

import pytest

from tests.used_folders import contents_in_use, files_in_use


def test_all_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("deep")
    (tmp_path / "d").write_text("high")
    (tmp_path / "link").symlink_to("missing")
    assert contents_in_use(tmp_path) == {tmp_path / "a/b/c": b"deep", tmp_path / "d": b"high"}


def test_a_directory_that_goes_after_its_parent_was_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "going").mkdir()
    (tmp_path / "staying").mkdir()
    (tmp_path / "staying/file").write_text("here")
    scandir = os.scandir

    def removing(path: str) -> object:
        if Path(path).name == "going":
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr("os.scandir", removing)
    assert list(files_in_use(tmp_path)) == [tmp_path / "staying/file"]


def test_a_file_that_goes_before_it_is_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "going").write_text("gone")
    (tmp_path / "staying").write_text("here")
    read_bytes = Path.read_bytes

    def removing(path: Path) -> bytes:
        if path.name == "going":
            path.unlink()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", removing)
    assert contents_in_use(tmp_path) == {tmp_path / "staying": b"here"}
