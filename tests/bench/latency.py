"""Measures from the webhook to its job's start, and to a real job's end.

Every push has its own commit, which is fetched.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2

from solstice_common.values.times import parse_timestamp
from tests.bench import load
from tests.bench.checkouts import python_of
from tests.bench.services import Services, services
from tests.servers.rabbitmq import RabbitMQServer

PER_SECOND = 50.0
BUILDS_PER_SECOND = 20.0
"""For real jobs, which take processor time beside it all."""
SLOTS = 32
WARM_UP = 50
TIMEOUT_SECONDS = 120.0
WORKFLOW = b'job "build" {\n    step "nothing" run="exit 0"\n}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The latencies in milliseconds."""

    to: str
    """What it took until."""
    per_second: float
    count: int
    p50: float
    p99: float
    worst: float
    beside: "Latency | None" = None
    """Those of another checkout."""

    @property
    def summary(self) -> str:
        """The figures, for people."""
        return (
            f"webhook to {self.to} at {self.per_second:.0f}/s, {self.count} pushes, each its own commit: "
            f"p50 {self.p50:.0f} ms, p99 {self.p99:.0f} ms, worst {self.worst:.0f} ms"
            + (f"\nthe other checkout, {self.beside.summary}" if self.beside else "")
        )


async def measure(server: RabbitMQServer, *, count: int, beside: Path | None) -> Latency:
    """Send `count` webhooks after a warm-up, first to the checkout `beside`.

    Each latency counts from the moment when the webhook was due.
    """
    other = await _measure(server, count, python_of(beside)) if beside else None
    return replace(await _measure(server, count, Path(sys.executable)), beside=other)


async def measure_builds(server: RabbitMQServer, *, count: int, beside: Path | None) -> Latency:
    """As `measure`, up to the end of a real job."""
    other = await _measure_builds(server, count, python_of(beside)) if beside else None
    return replace(await _measure_builds(server, count, Path(sys.executable)), beside=other)


async def _measure(server: RabbitMQServer, count: int, python: Path) -> Latency:
    waits = await _waits(server, count, python, PER_SECOND, moment="started_at", executor="scripted")
    return _latency("job start", PER_SECOND, waits)


async def _measure_builds(server: RabbitMQServer, count: int, python: Path) -> Latency:
    waits = await _waits(server, count, python, BUILDS_PER_SECOND, moment="finished_at", executor="process")
    return _latency("the end of a real job", BUILDS_PER_SECOND, waits)


def _latency(to: str, per_second: float, waits: Sequence[float]) -> Latency:
    return Latency(
        to=to,
        per_second=per_second,
        count=len(waits),
        p50=statistics.median(waits),
        p99=waits[round(0.99 * (len(waits) - 1))],
        worst=waits[-1],
    )


async def _waits(
    server: RabbitMQServer, count: int, python: Path, per_second: float, *, moment: str, executor: str
) -> Sequence[float]:
    """Return the milliseconds from each webhook to this moment of its run, sorted."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        commits = repository(directory / "otter.git", count + WARM_UP)
        bodies = [
            load.push_of(commit, f"file://{directory}/otter.git", ref="refs/heads/main") for commit in commits
        ]
        async with services(
            vhost.url, directory / "state", slots=SLOTS, python=python, EXECUTOR=executor
        ) as running:
            sent = await load.at_rate(
                running.forge_port, [load.request_bytes(body) for body in bodies], per_second=per_second
            )
            reached = await moments(running, len(commits), moment)
    return sorted(
        1000 * (reached[commit] - at) for commit, at in list(zip(commits, sent, strict=True))[WARM_UP:]
    )


async def moments(running: Services, count: int, moment: str) -> dict[str, float]:
    """When each commit's run came to this moment, after all have."""
    async with (
        httpx2.AsyncClient(base_url=running.orchestrator_url) as client,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        while True:
            found, after = {}, ""
            while after is not None:
                answer = await client.get(
                    "/api/v1/runs", params={"limit": 200, **({"after": after} if after else {})}
                )
                page = answer.raise_for_status().json()
                after = page["next"]
                found.update({run["commit_sha"]: run[moment] for run in page["runs"] if run[moment]})
            if len(found) == count:
                return {commit: parse_timestamp(at).timestamp() for commit, at in found.items()}
            await asyncio.sleep(1)


def repository(directory: Path, count: int) -> Sequence[str]:
    """A bare repository with so many commits, each with its own workflow.

    Returns their ids, oldest first.
    """
    git = ["git", "-C", str(directory)]
    directory.mkdir(parents=True)
    subprocess.run([*git, "init", "--quiet", "--bare", "--initial-branch=main"], check=True)
    stream = b"".join(
        b"commit refs/heads/main\ncommitter Marten <marten@forge.example> %d +0000\ndata 1\n.\n"
        b"M 100644 inline .solstice/workflow.kdl\ndata %d\n%s\n"
        % (1_700_000_000 + number, len(content), content)
        for number in range(count)
        for content in [WORKFLOW + b"// %d\n" % number]
    )
    subprocess.run([*git, "fast-import", "--quiet"], input=stream, check=True)
    listed = subprocess.run(
        [*git, "rev-list", "--reverse", "main"], check=True, capture_output=True, text=True
    )
    return listed.stdout.split()
