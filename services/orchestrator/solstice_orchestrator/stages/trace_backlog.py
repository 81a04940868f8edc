"""Gives the exporter of traces the ended runs of the store, as spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.trace_export import TracedItem
from solstice_orchestrator.stages.run_spans import RunSurroundings, run_spans
from solstice_orchestrator.store.traced_runs import RunTraces


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraceBacklog:
    """A TracedBacklog of the store's ended runs."""

    store: RunTraces
    sampler: Sampler
    surroundings: RunSurroundings

    async def take(self, limit: int, leased_seconds: float) -> Sequence[TracedItem[str]]:
        return [
            TracedItem(key=ended.run.run_id, spans=partial(run_spans, ended, self.sampler, self.surroundings))
            for ended in await self.store.take_traces(limit, leased_seconds)
        ]

    async def traced(self, keys: Sequence[str]) -> None:
        await self.store.traced(keys)
