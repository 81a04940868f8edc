"""Ended runs of the store, as the exporter of traces takes them."""

from collections.abc import Sequence

from solstice_orchestrator.stages.trace_backlog import RunTraceBacklog
from solstice_orchestrator.store.traced_runs import TracedRun
from tests.unit.orchestrator.stages.test_run_spans import ALL, SURROUNDINGS, WHOLE, spans


class OneRun:
    """A store with one ended run."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    async def take_traces(self, limit: int, leased_seconds: float) -> Sequence[TracedRun]:
        assert (limit, leased_seconds) == (7, 15.0)
        return [WHOLE]

    async def traced(self, run_ids: Sequence[str]) -> None:
        self.removed += run_ids


async def test_a_run_is_taken_with_its_spans_and_removed_by_its_id() -> None:
    store = OneRun()
    backlog = RunTraceBacklog(store=store, sampler=ALL, surroundings=SURROUNDINGS)
    (work,) = await backlog.take(7, 15.0)
    assert (work.key, list(work.spans())) == ("run-1", spans())
    await backlog.traced([work.key])
    assert store.removed == ["run-1"]
