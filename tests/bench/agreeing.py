"""Compares `solstice simulate` with an orchestrator that has just run the trace.

The scripted executor sleeps for the duration of each job; time is real, so a minute of jobs takes a minute.
Settings by which the number of slots depends on the host are off: the simulator has no load.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import httpx2

from solstice_common.messages import Priority
from solstice_common.values.times import parse_timestamp
from tests.bench.services import Services, services
from tests.bench.simulating import solstice
from tests.repositories import Repository
from tests.servers.rabbitmq import RabbitMQServer

SLOTS: Final = 3
PER_SECOND: Final = 5.0
DURATIONS: Final = (0.3, 0.6, 1.0, 1.5, 3.0)
"""Seconds of the jobs.

At this rate they need twice the slots, so a queue grows.
"""
PRIORITIES: Final = {Priority.HIGH: 3, Priority.DEFAULT: 1, Priority.LOW: 1}
"""How often each priority comes.

The high ones alone exceed the slots: every job waits for seconds, not for the next free slot.
"""
REPOSITORIES: Final = {"river/otter": 4, "river/heron": 2, "reef/tide": 1}
GOAL: Final = 0.10
TIMEOUT_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanWaits:
    """Mean waits, in seconds, by the jobs' priority."""

    jobs: int
    really: Mapping[str, float]
    simulated: Mapping[str, float]

    @property
    def summary(self) -> str:
        """The figures, for people."""
        waits = ", ".join(
            f"{priority} {seconds:.1f} s, simulated {self.simulated[priority]:.1f} s ({self.simulated[priority] / seconds - 1:+.1%})"
            for priority, seconds in self.really.items()
        )
        return (
            f"mean waits of {self.jobs} jobs on {SLOTS} slots, run by an orchestrator: {waits} "
            f"(goal: within {GOAL:.0%})"
        )


async def measure(server: RabbitMQServer, *, count: int) -> MeanWaits:
    """Run `count` one-job runs at random moments, and simulate their record.

    The moments come from one seed.
    """
    rng = random.Random(7)
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        repository = Repository(directory / "otter.git")
        commits = [
            repository.commit(
                {".solstice/workflow.kdl": f'job "build" {{\n    step "it" run="sleep {seconds}"\n}}\n'}
            )
            for seconds in DURATIONS
        ]
        database = f"sqlite:///{directory / 'store.db'}"
        async with (
            services(
                vhost.url,
                directory / "state",
                slots=SLOTS,
                DATABASE_URL=database,
                FORGE_API_PER_MINUTE="100000",
                GOVERNOR="off",
                ADAPTIVE_CONCURRENCY="false",
            ) as running,
            httpx2.AsyncClient() as client,
        ):
            for job_input in _requests(rng, repository.url, commits, count):
                due = time.monotonic() + rng.expovariate(PER_SECOND)
                answer = await client.post(
                    f"http://127.0.0.1:{running.forge_port}/api/v1/jobs", json=job_input
                )
                answer.raise_for_status()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            jobs = await _ended(running, client, count)
        trace = str(directory / "jobs.jsonl")
        await solstice("record", "--out", trace, "--database-url", database)
        summary = json.loads(await solstice("--trace", trace, "--slots", f"linux={SLOTS}", "--no-one-more"))
    waits: dict[str, list[float]] = {}
    for job in jobs:
        waits.setdefault(job["priority"], []).append(_moment(job["started_at"]) - _moment(job["created_at"]))
    return MeanWaits(
        jobs=count,
        really={priority: fmean(each) for priority, each in waits.items()},
        simulated={each["priority"]: each["waits"]["mean"] for each in summary["waits"] if each["priority"]},
    )


def _requests(
    rng: random.Random, url: str, commits: Sequence[str], count: int
) -> Sequence[Mapping[str, str]]:
    names, priorities = [*REPOSITORIES], [*PRIORITIES]
    return [
        {
            "repo_url": url,
            "commit_sha": rng.choice(commits),
            "repo_full_name": rng.choices(names, [*REPOSITORIES.values()])[0],
            "priority": rng.choices(priorities, [*PRIORITIES.values()])[0],
        }
        for _ in range(count)
    ]


async def _ended(running: Services, client: httpx2.AsyncClient, count: int) -> Sequence[Mapping[str, Any]]:
    """All jobs, once each has succeeded."""
    url = f"{running.orchestrator_url}/api/v1/jobs"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            parameters = {"limit": "200", "state": "succeeded"}
            jobs: Sequence[Mapping[str, Any]] = (
                (await client.get(url, params=parameters)).raise_for_status().json()["jobs"]
            )
            if len(jobs) == count:
                return jobs
            await asyncio.sleep(1)


def _moment(written: str) -> float:
    return parse_timestamp(written).timestamp()
