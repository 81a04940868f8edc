"""Where the servers of the tests write."""

import tempfile
from pathlib import Path

import pytest

from tests.servers import scratch
from tests.servers.scratch import scratch_folder


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the temporary folder on a disk; memory is another one."""
    for name in ("disk", "memory"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(scratch, "FREE_BYTES", 0)
    return tmp_path / "disk"


def test_in_memory_and_never_twice_the_same(disk: Path) -> None:
    folders = {scratch_folder("rabbitmq"), scratch_folder("rabbitmq")}
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {disk.parent / "memory"}


def test_on_the_disk_when_it_is_measured(disk: Path) -> None:
    assert scratch_folder("rabbitmq", synced=True).parent == disk


@pytest.mark.parametrize("why", ["no room", "no such folder"])
def test_on_the_disk_when_memory_will_not_do(disk: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "no room":
        monkeypatch.setattr(scratch, "FREE_BYTES", 1 << 60)
    else:
        monkeypatch.setattr(scratch, "MEMORY", disk / "nowhere")
    assert scratch_folder("rabbitmq").parent == disk
