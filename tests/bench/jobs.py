"""Measures what a job costs beyond its steps.

240 jobs of one run, whose step is `true`, run on `solstice up` with 8 slots.
The yardstick does in a bare loop what every such job needs: files of the commit in a new directory, one bash, and
the directory removed again.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import httpx2

from solstice_common.values.times import parse_timestamp
from tests.bench.processes import processor_times
from tests.servers.solstice_up import Repository
from tests.soak.deployments import Deployment, embedded
from tests.soak.load import Load, tiny_jobs

SLOTS: Final = 8
LOOP_THREADS: Final = 2
"""The yardstick uses both processors, as the services do."""


Round: TypeAlias = tuple[float, float, float]
"""Jobs per second, and milliseconds of processor per job in the process itself and in its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Jobs per second, and the processor time of one job in milliseconds, round by round."""

    per_second: Sequence[float]
    own_ms: Sequence[float]
    """In `solstice up` itself."""
    children_ms: Sequence[float]
    """In the processes that it started and waited for."""

    @property
    def median_rate(self) -> float:
        """Jobs per second, the median of the rounds."""
        return statistics.median(self.per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The cost of our jobs beside that of the bare loop."""

    count: int
    ours: Cost
    bare: Cost

    @property
    def summary(self) -> str:
        """The figures, for people."""
        own, children = statistics.median(self.ours.own_ms), statistics.median(self.ours.children_ms)
        bare = statistics.median(self.bare.own_ms) + statistics.median(self.bare.children_ms)
        return (
            f"{self.count} jobs of one run, {SLOTS} slots: {self.ours.median_rate:.1f} jobs/s, "
            f"{own + children:.1f} ms of processor each ({own:.1f} in the service, {children:.1f} in its children); "
            f"bare checkout and bash: {self.bare.median_rate:.1f}/s, {bare:.1f} ms each"
        )


async def measure(*, count: int, rounds: int) -> Jobs:
    """Run `count` jobs and as many turns of the loop, by turns.

    One round of each comes first and is not counted.
    """
    return await asyncio.to_thread(_measure, count, rounds)


def _measure(count: int, rounds: int) -> Jobs:
    ours, bare = list[Round](), list[Round]()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        project = tiny_jobs(directory / "otter", count)
        loop = _BareLoop(project, directory / "bare", count)
        with embedded(directory, slots=SLOTS) as deployment, httpx2.Client(trust_env=False) as client:
            load = Load(deployment, project, client)
            for number in range(rounds + 1):
                bare.append(loop.round())
                ours.append(_run_jobs(load, deployment, number + 1, count))
    return Jobs(count=count, ours=_cost(ours[1:]), bare=_cost(bare[1:]))


def _cost(rounds: Sequence[Round]) -> Cost:
    rates, own, children = zip(*rounds, strict=True)
    return Cost(per_second=rates, own_ms=own, children_ms=children)


def _run_jobs(load: Load, deployment: Deployment, runs: int, count: int) -> Round:
    """Push once more, and wait until that run has ended.

    The rate counts from the first job's start to the last one's end.
    """
    (pid,) = deployment.pids.values()
    before = processor_times(pid)
    load.run(runs, lambda _: None)
    own, children = (1000 * (now - then) for now, then in zip(processor_times(pid), before, strict=True))
    run = load.newest_run()
    if run["state"] != "succeeded":
        raise RuntimeError(f"the run of {count} jobs ended {run['state']}")
    seconds = (parse_timestamp(run["finished_at"]) - parse_timestamp(run["started_at"])).total_seconds()
    return count / seconds, own / count, children / count


class _BareLoop:
    """Checks out, runs `bash -c true`, and removes the files, in two threads.

    The objects of the commit are at hand.
    """

    def __init__(self, project: Repository, directory: Path, count: int) -> None:
        self._project, self._directory, self._count = project, directory, count
        self._head = project.head

    def round(self) -> Round:
        self._directory.mkdir()
        before, begun = os.times(), time.monotonic()
        with ThreadPoolExecutor(LOOP_THREADS) as threads:
            list(threads.map(self._job, range(self._count)))
        seconds, after = time.monotonic() - begun, os.times()
        self._directory.rmdir()
        own = after.user + after.system - before.user - before.system
        children = after.children_user + after.children_system - before.children_user - before.children_system
        return self._count / seconds, 1000 * own / self._count, 1000 * children / self._count

    def _job(self, number: int) -> None:
        place = self._directory / str(number)
        place.mkdir()
        environment = {
            "PATH": os.defpath,
            "GIT_DIR": str(self._project.folder / ".git"),
            "GIT_WORK_TREE": str(place),
            "GIT_INDEX_FILE": str(place / "index"),
        }
        for command in (
            ["git", "read-tree", "--reset", "-u", self._head],
            ["bash", "-c", "true"],
        ):
            subprocess.run(command, cwd=place, env=environment, check=True)
        shutil.rmtree(place)
