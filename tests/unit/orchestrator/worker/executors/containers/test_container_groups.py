"""Groups of containers are found among those that others make and remove."""

import threading
from pathlib import Path

import pytest

from solstice_orchestrator.worker.executors.containers import container_groups
from solstice_orchestrator.worker.executors.containers.container_groups import group_of, groups_left


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hierarchies of the control groups."""
    monkeypatch.setattr(container_groups, "ROOT", tmp_path)
    return tmp_path


def test_groups_of_an_orchestrator_are_found_in_every_hierarchy(root: Path) -> None:
    own_groups = [root / "solstice.quay.1", root / "memory" / "solstice.quay.2"]
    for group in (*own_groups, root / "solstice.pier.1", root / "memory" / "solstice.pier.1"):
        group.mkdir(parents=True)
    assert sorted(groups_left("quay")) == sorted(own_groups)
    assert groups_left("quay", "2") == [root / "memory" / "solstice.quay.2"]


def test_groups_below_a_base_are_found(root: Path) -> None:
    (root / "user" / "solstice.quay.1").mkdir(parents=True)
    assert groups_left("quay", base="/user") == [root / group_of("quay", "1", "/user").lstrip("/")]


def test_groups_that_go_away_meanwhile_are_no_failure(root: Path) -> None:
    (root / "solstice.quay.1").mkdir()
    others = [root / f"solstice.pier.{number}" for number in range(200)]
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for group in others:
                group.mkdir()
            for group in others:
                group.rmdir()

    coming = threading.Thread(target=come_and_go)
    coming.start()
    try:
        for _ in range(300):
            assert groups_left("quay") == [root / "solstice.quay.1"]
    finally:
        ended.set()
        coming.join()
