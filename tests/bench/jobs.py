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
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import httpx2

from solstice_common.values.times import parse_timestamp
from tests.bench.checkouts import python_of
from tests.bench.processes import processor_times
from tests.servers.solstice_up import Repository
from tests.soak.deployments import Deployment, embedded
from tests.soak.load import Load, tiny_jobs

SLOTS: Final = 8
LOOP_THREADS: Final = 2
"""The yardstick uses both processors, as the services do."""


Round: TypeAlias = tuple[float, float, float, float]
"""Jobs per second, milliseconds of processor per job in the process itself and in its children, and milliseconds from
the webhook to the first job's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What jobs cost, round by round."""

    per_second: Sequence[float]
    own_ms: Sequence[float]
    """The processor time of one job in `solstice up` itself."""
    children_ms: Sequence[float]
    """In the processes that it started and waited for."""
    start_ms: Sequence[float]
    """From the webhook to the first job's start."""

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> "Cost":
        """Return the cost in these rounds."""
        rates, own, children, starts = zip(*rounds, strict=True)
        return cls(per_second=rates, own_ms=own, children_ms=children, start_ms=starts)

    @property
    def rate(self) -> float:
        """Jobs per second, the median of the rounds."""
        return statistics.median(self.per_second)

    @property
    def processor_ms(self) -> float:
        """Processor time of one job, the median of the rounds."""
        return statistics.median(map(sum, zip(self.own_ms, self.children_ms, strict=True)))

    @property
    def summary(self) -> str:
        """The figures, for people."""
        return (
            f"{self.rate:.1f} jobs/s, {self.processor_ms:.1f} ms of processor each "
            f"({statistics.median(self.own_ms):.1f} in the service, {statistics.median(self.children_ms):.1f} in its "
            f"children), webhook to first start {statistics.median(self.start_ms):.0f} ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The cost of our jobs, of the bare loop, and of another checkout's jobs."""

    count: int
    ours: Cost
    bare: Cost
    beside: Cost | None = None

    @property
    def summary(self) -> str:
        """The figures, for people."""
        lines = [
            f"{self.count} jobs of one run, {SLOTS} slots: {self.ours.summary}",
            f"bare checkout and bash: {self.bare.rate:.1f}/s, {self.bare.processor_ms:.1f} ms each",
        ]
        if self.beside:
            pairs = zip(self.ours.per_second, self.beside.per_second, strict=True)
            rate = statistics.median(ours / other for ours, other in pairs)
            processor = self.ours.processor_ms / self.beside.processor_ms
            lines += [
                f"the other checkout: {self.beside.summary}",
                f"ours to it: {rate:.2f}x the rate, {processor:.2f}x the processor",
            ]
        return "\n".join(lines)


async def measure(*, count: int, rounds: int, beside: Path | None) -> Jobs:
    """Run `count` jobs and as many turns of the loop, by turns.

    The checkout `beside` runs them, too. One round of each comes first and is not counted.
    """
    return await asyncio.to_thread(_measure, count, rounds, beside)


def _measure(count: int, rounds: int, beside: Path | None) -> Jobs:
    pythons = [Path(sys.executable), *([python_of(beside)] if beside else [])]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        project = tiny_jobs(directory / "otter", count)
        client = stack.enter_context(httpx2.Client(trust_env=False))
        ways: list[Callable[[], Round]] = [_BareLoop(project, directory / "bare", count).round]
        for number, python in enumerate(pythons):
            home = directory / f"checkout-{number}"
            deployment = stack.enter_context(embedded(home, slots=SLOTS, python=python))
            ways.append(_Pushes(Load(deployment, project, client), deployment, count).round)
        figures = [[way() for way in ways] for _ in range(rounds + 1)][1:]
    bare, ours, *others = (Cost.of(list(of_way)) for of_way in zip(*figures, strict=True))
    return Jobs(count=count, ours=ours, bare=bare, beside=others[0] if others else None)


class _Pushes:
    """Pushes to a deployment, each with one run of so many jobs."""

    def __init__(self, load: Load, deployment: Deployment, count: int) -> None:
        self._load, self._count, self._runs = load, count, 0
        (self._pid,) = deployment.pids.values()

    def round(self) -> Round:
        """Push once more, and wait until that run has ended.

        The rate counts from the first job's start to the last one's end.
        """
        self._runs += 1
        before, pushed_at = processor_times(self._pid), time.time()
        self._load.run(self._runs, lambda _: None)
        own, children = (
            1000 * (now - then) for now, then in zip(processor_times(self._pid), before, strict=True)
        )
        run = self._load.newest_run()
        if run["state"] != "succeeded":
            raise RuntimeError(f"the run of {self._count} jobs ended {run['state']}")
        started_at, finished_at = (
            parse_timestamp(run[moment]).timestamp() for moment in ("started_at", "finished_at")
        )
        return (
            self._count / (finished_at - started_at),
            own / self._count,
            children / self._count,
            1000 * (started_at - pushed_at),
        )


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
        return self._count / seconds, 1000 * own / self._count, 1000 * children / self._count, 0.0

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
