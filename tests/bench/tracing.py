"""Measures the line with every run traced against the same line untraced.

Both are both services on one RabbitMQ, with real jobs that do nothing, each in a run of its own. The traced one sends to
a collector that answers and reads nothing. All share the machine.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2

from tests.bench import latency, load
from tests.bench.pairs import Comparison, compare
from tests.bench.processes import processor_times, role
from tests.bench.services import Services, services
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import RabbitMQServer

SLOTS: Final = 4
CONNECTIONS: Final = 16
SPANS_PER_RUN: Final = 7
PAUSE_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 300.0


@dataclass(kw_only=True)
class _Way:
    """One of the two deployments, and the processor time of each of its rounds."""

    running: Services
    repository: str
    commit: str
    traced: bool
    spans: int = 0
    runs: int = 0
    processor_ms: list[float] = field(default_factory=list)
    """Of one run, in both services and all their children; of a traced round until its last span was sent."""

    async def round(self, number: int, count: int) -> float:
        """Return the runs per second from the first webhook to the last end."""
        requests = [
            load.request_bytes(load.push_of(self.commit, self.repository, ref=f"refs/heads/{number}-{each}"))
            for each in range(count)
        ]
        before = self._processor_seconds()
        began = time.monotonic()
        answers = await load.flood(self.running.forge_port, requests, connections=CONNECTIONS)
        if any(answer.status != load.ACCEPTED for answer in answers):
            raise RuntimeError("a webhook was not accepted")
        self.runs += count
        await self._until("solstice_attempts_finished_total", lambda ended: ended >= self.runs)
        rate = count / (time.monotonic() - began)
        if self.traced:
            # The requests' spans are sent by the other service, sooner.
            expected = (SPANS_PER_RUN - 2) * self.runs
            await self._until("solstice_trace_spans_total", lambda sent: sent >= expected)
        if number >= 0:
            self.processor_ms.append(1000 * (self._processor_seconds() - before) / count)
        return rate

    def _processor_seconds(self) -> float:
        return sum(sum(processor_times(pid)) for pid in self.running.pids.values())

    async def _until(self, metric: str, reached: Callable[[float], bool]) -> None:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            httpx2.AsyncClient(base_url=self.running.orchestrator_url, trust_env=False) as client,
        ):
            while True:
                lines = (await client.get("/metrics")).text.splitlines()
                of_metric = [line for line in lines if line.startswith(f"{metric}{{")]
                if reached(sum(float(line.rpartition(" ")[2]) for line in of_metric)):
                    return
                await asyncio.sleep(PAUSE_SECONDS)


async def measure(server: RabbitMQServer, *, count: int, rounds: int) -> Comparison:
    """Runs per second, from the first webhook to the end of the last job."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (commit,) = latency.repository(directory / "otter.git", 1)
        (port,) = free_ports(1)
        collector = await stack.enter_async_context(role("collector", port=port))
        await collector.answer()
        ways = []
        for name, settings in (
            ("traced", {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}),
            ("untraced", {}),
        ):
            vhost = stack.enter_context(server.vhost())
            running = await stack.enter_async_context(
                services(vhost.url, directory / name, slots=SLOTS, EXECUTOR="process", **settings)
            )
            ways.append(
                _Way(
                    running=running,
                    repository=f"file://{directory}/otter.git",
                    commit=commit,
                    traced=bool(settings),
                )
            )
        traced, untraced = ways

        def note() -> str:
            pairs = list(zip(traced.processor_ms, untraced.processor_ms, strict=True))
            shares = sorted(a / b - 1 for a, b in pairs)
            return (
                f"processor time of a run: {statistics.median(traced.processor_ms):.1f} ms traced, "
                f"{statistics.median(untraced.processor_ms):.1f} ms untraced "
                f"({statistics.median(shares):+.1%}; pairs from {shares[0]:+.1%} to {shares[-1]:+.1%})"
            )

        return await compare(
            "whole line with real jobs, every run traced, against the same untraced",
            ours=lambda number: traced.round(number, count),
            yardstick=lambda number: untraced.round(number, count),
            rounds=rounds,
            goal=0.97,
            note=note,
        )
