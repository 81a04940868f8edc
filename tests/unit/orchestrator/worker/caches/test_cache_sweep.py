"""Unused caches go while the orchestrator works, also after the store was away."""

import random
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.worker.caches.cache_entries import CacheEntry
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.cache_sweep import SWEEP_SECONDS, run_cache_sweep
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory
from tests.unit.orchestrator.worker.caches.test_cache_limits import entry


class Enough(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class Store(CacheStore):
    """Is away at first, and has something to remove after that."""

    rounds: list[int] = field(default_factory=list)

    def sweep(self) -> list[CacheEntry]:
        self.rounds.append(len(self.rounds))
        if self.rounds == [0]:
            raise OSError("the store is away")
        return [entry(1, 1, 0.0).entry] if self.rounds == [0, 1] else []


async def test_a_sweep_goes_on_after_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    store, evicted, pauses = (
        Store(objects=ObjectDirectory(tmp_path_factory.mktemp("c"))),
        list[int](),
        list[float](),
    )

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(store.rounds) == 3:
            raise Enough

    with capture_logs() as logs, pytest.raises(Enough):
        await run_cache_sweep(store, evicted.append, rng=random.Random(1), sleep=sleep)
    assert evicted == [1]
    assert [(each["event"], each.get("detail"), each.get("entries")) for each in logs] == [
        (LogEvent.CACHE_SWEEP_PAUSED, "the store is away", None),
        (LogEvent.CACHES_REMOVED, None, 1),
    ]
    assert max(pauses) <= 1.5 * SWEEP_SECONDS
