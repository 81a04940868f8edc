"""Measures both services, from webhooks to the ends of jobs, with settings and without them.

The jobs are real ones that do nothing, each in a run of its own. Both deployments share the machine.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2

from tests.bench import latency, load
from tests.bench.pairs import Comparison, compare
from tests.bench.processes import processor_times
from tests.bench.services import Services, services
from tests.servers.rabbitmq import RabbitMQServer

SLOTS: Final = 4
CONNECTIONS: Final = 16
PAUSE_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 300.0


@dataclass(kw_only=True)
class WholeLine:
    """A deployment, and the processor time of each of its rounds."""

    running: Services
    repository: str
    commit: str
    spans_per_run: int = 0
    """Spans that the orchestrator sends of each run, at least; a round lasts until it has sent them."""
    runs: int = 0
    processor_ms: list[float] = field(default_factory=list)
    """Of one run, in both services and all their children."""

    async def round(self, number: int, count: int) -> float:
        """Return the runs per second from the first webhook to the last end."""
        requests = [
            load.request_bytes(
                load.push_of(self.commit, self.repository, ref=f"refs/heads/round{number}-{each}")
            )
            for each in range(count)
        ]
        before = self._processor_seconds()
        began = time.monotonic()
        answers = await load.flood(self.running.forge_port, requests, connections=CONNECTIONS)
        if any(answer.status != load.ACCEPTED for answer in answers):
            raise RuntimeError("a webhook was not accepted")
        self.runs += count
        await self._until("solstice_attempts_finished_total", self.runs)
        rate = count / (time.monotonic() - began)
        if self.spans_per_run:
            await self._until("solstice_trace_spans_total", self.spans_per_run * self.runs)
        if number >= 0:
            self.processor_ms.append(1000 * (self._processor_seconds() - before) / count)
        return rate

    def _processor_seconds(self) -> float:
        return sum(sum(processor_times(pid)) for pid in self.running.pids.values())

    async def _until(self, metric: str, least: int) -> None:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            httpx2.AsyncClient(base_url=self.running.orchestrator_url, trust_env=False) as client,
        ):
            while True:
                lines = (await client.get("/metrics")).text.splitlines()
                of_metric = [line for line in lines if line.startswith(f"{metric}{{")]
                if sum(float(line.rpartition(" ")[2]) for line in of_metric) >= least:
                    return
                await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def whole_line(
    server: RabbitMQServer,
    directory: Path,
    name: str,
    settings: Mapping[str, str],
    *,
    spans_per_run: int = 0,
) -> AsyncIterator[WholeLine]:
    """Run both services with these settings, on a vhost of their own."""
    repository = directory / f"{name}.git"
    (commit,) = latency.repository(repository, 1)
    with server.vhost() as vhost:
        async with services(
            vhost.url, directory / name, slots=SLOTS, **{"EXECUTOR": "process", **settings}
        ) as running:
            yield WholeLine(
                running=running,
                repository=f"file://{repository}",
                commit=commit,
                spans_per_run=spans_per_run,
            )


async def compare_lines(
    what: str, word: str, ours: WholeLine, yardstick: WholeLine, *, count: int, rounds: int, goal: float
) -> Comparison:
    """Measure both in turn; `word` says what ours is and the yardstick is not."""

    def note() -> str:
        shares = sorted(a / b - 1 for a, b in zip(ours.processor_ms, yardstick.processor_ms, strict=True))
        return (
            f"processor time of a run: {statistics.median(ours.processor_ms):.1f} ms {word}, "
            f"{statistics.median(yardstick.processor_ms):.1f} ms un{word} "
            f"({statistics.median(shares):+.1%}; pairs from {shares[0]:+.1%} to {shares[-1]:+.1%})"
        )

    return await compare(
        what,
        ours=lambda number: ours.round(number, count),
        yardstick=lambda number: yardstick.round(number, count),
        rounds=rounds,
        goal=goal,
        note=note,
    )
