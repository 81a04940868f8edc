"""Expired artifacts go, records before archives, and nothing that is needed."""

import random
from collections.abc import Collection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.stages.artifact_sweep import (
    NEEDED_SECONDS,
    SWEEP_SECONDS,
    run_artifact_sweep,
    sweep_artifacts,
)
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives

NOW = 10_000.0
OLD, NEW, RECORDED = "aa" * 32, "bb" * 32, "cc" * 32


class Store:
    """Has so many expired records, and knows these digests."""

    def __init__(self, expired: int = 0, recorded: Collection[str] = (), *, away: bool = False) -> None:
        self.expired, self.recorded, self.away = expired, frozenset(recorded), away

    async def expire_artifacts(self, limit: int) -> int:
        if self.away:
            raise StoreUnavailable("the store", "away")
        removed = min(limit, self.expired)
        self.expired -= removed
        return removed

    async def recorded_digests(self, digests: Collection[str]) -> frozenset[str]:
        return self.recorded & frozenset(digests)


@pytest.fixture
def directory(tmp_path: Path) -> ArtifactArchives:
    directory = ArtifactArchives(tmp_path)
    directory.prepare()
    for digest, until in ((OLD, NOW - 1), (NEW, NOW + 1), (RECORDED, NOW - 1)):
        with directory.incoming() as archive:
            directory.place(archive, digest, until)
    return directory


def present(directory: ArtifactArchives) -> list[str]:
    return [each for each in (OLD, NEW, RECORDED) if directory.find(each)]


async def test_what_is_neither_recorded_nor_in_its_time_is_removed(directory: ArtifactArchives) -> None:
    assert await sweep_artifacts(Store(1200, [RECORDED]), directory, lambda: NOW) == (1200, 1)
    assert present(directory) == [NEW, RECORDED]
    later = NOW + NEEDED_SECONDS + 1
    assert await sweep_artifacts(Store(), directory, lambda: later) == (0, 2)


async def test_without_a_directory_records_alone_are_removed(tmp_path: Path) -> None:
    missing = ArtifactArchives(tmp_path / "missing")
    assert await sweep_artifacts(Store(3), missing, lambda: NOW) == (3, 0)
    assert not missing.path.exists()


async def test_it_goes_on_after_failures_and_says_what_it_removed(directory: ArtifactArchives) -> None:
    class EndOfTestError(Exception):
        """Enough was seen."""

    store, slept = Store(1, away=True), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        store.away = len(slept) < 2
        if len(slept) == 3:
            raise EndOfTestError

    with pytest.raises(EndOfTestError), capture_logs() as logs:
        await run_artifact_sweep(store, directory, rng=random.Random(1), sleep=sleep)
    assert [each["event"] for each in logs] == [
        LogEvent.ARTIFACT_SWEEP_PAUSED,
        LogEvent.ARTIFACTS_REMOVED,
    ]
    assert all(0 <= each <= SWEEP_SECONDS * 1.2 for each in slept)
