"""Measures what a job costs in each executor.

Beside them are `podman run`, and a bare loop of checkout and bash. In each round all of them take turns: jobs one after
the other, one job of many steps, and several jobs at once.
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import NetworkAccess
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes.supervisor import become_subreaper
from solstice_orchestrator.worker.executors import Executor, make_executor
from solstice_orchestrator.worker.executors.containers.container_plan import ContainerRules
from solstice_orchestrator.worker.executors.containers.podman_launcher import open_podman
from solstice_orchestrator.worker.workspaces import Workspaces, open_workspaces
from tests.bench.processes import processor_times
from tests.builders import execution, job, job_request
from tests.repositories import Repository
from tests.servers.podman import IMAGE, PodmanStore, podman_is_there, podman_store

STEPS: Final = 21
AT_ONCE: Final = 4
PODMAN_RUN: Final = [
    *("podman", "run", "--rm", "--network", "none", "--pull", "never"),
    # Root in a container may not raise its limits.
    *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", IMAGE, "sh", "-c", "true"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What one way of running jobs cost, round by round."""

    job_ms: list[float] = field(default_factory=list)
    """Of each job that ran by itself."""
    start_ms: list[float] = field(default_factory=list)
    """Until its first step ran."""
    step_ms: list[float] = field(default_factory=list)
    """Each step after the first one."""
    per_second: list[float] = field(default_factory=list)
    """Jobs, AT_ONCE at once."""
    processor_ms: list[float] = field(default_factory=list)
    """Processor time of each of those."""

    def summary(self, beside: "RoundCosts | None") -> str:
        """The medians, for people; in parentheses, how many times those of the yardstick."""
        parts = []
        for name, unit in (
            ("start_ms", "ms to the first step"),
            ("job_ms", "ms a job"),
            ("step_ms", "ms a further step"),
            ("per_second", "jobs/s"),
            ("processor_ms", "ms of processor each"),
        ):
            if not (ours := getattr(self, name)):
                continue
            bare = getattr(beside, name) if beside else []
            ratio = f" ({statistics.median(ours) / statistics.median(bare):.2f}x)" if bare else ""
            parts.append(f"{statistics.median(ours):.1f} {unit}{ratio}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """The cost of jobs by the way in which they ran."""

    turns: dict[str, RoundCosts]

    @property
    def summary(self) -> str:
        """The figures, for people; each executor beside the command that does its work bare."""
        lines = [f"jobs by executor, {AT_ONCE} at once; in parentheses: as a multiple of the bare command"]
        for name, turns in self.turns.items():
            beside = {"process": "checkout and bash", "podman": "podman run"}.get(name)
            lines.append(f"  {name}: {turns.summary(self.turns.get(beside) if beside else None)}")
        return "\n".join(lines)


async def measure(*, count: int, rounds: int) -> Executors:
    """Run `count` jobs in each way and round; the first round is not counted.

    Without podman its ways are left out.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not podman_is_there():
            return await _measured(folder, None, count, rounds)
        with podman_store(folder / "podman") as podman:
            return await _measured(folder, podman, count, rounds)


async def _measured(folder: Path, podman: PodmanStore | None, count: int, rounds: int) -> Executors:
    repository = Repository(folder / "repository")
    sha = repository.commit({"hello.txt": "hello\n"})
    request = job_request(repo_url=repository.url, commit_sha=sha)
    kinds = ["process", *(["podman"] if podman else [])]
    async with open_workspaces(folder / "work") as workspaces:
        ways: dict[str, _Jobs | _Commands] = {}
        for kind in kinds:
            ways[kind] = _Jobs(await _executor(kind, workspaces, podman), request, workspaces)
        ways["checkout and bash"] = _Commands(_checkout(folder, repository, sha), {"PATH": os.defpath})
        if podman:
            ways["podman run"] = _Commands(lambda _: [PODMAN_RUN], podman.environment)
        turns = {name: RoundCosts() for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                await way.round(turns[name] if number else RoundCosts(), count)
    return Executors(turns=turns)


async def _executor(kind: str, workspaces: Workspaces, podman: PodmanStore | None) -> Executor:
    rules = ContainerRules(default_image=IMAGE, network=NetworkAccess.NONE)
    launcher = await open_podman(podman.environment, rules) if podman and kind == "podman" else None
    return make_executor(
        "podman" if launcher else "process",
        workspaces=workspaces,
        git=GitPolicy(protocols=("file",), cache_max_bytes=1 << 30),
        launcher=launcher,
    )


def _checkout(folder: Path, repository: Repository, sha: str) -> Callable[[int], list[list[str]]]:
    """The commands of one turn: files in a new directory, a shell, and their removal."""

    def commands(number: int) -> list[list[str]]:
        place = folder / f"bare-{number}"
        git = ["git", f"--git-dir={repository.path}/.git", f"--work-tree={place}"]
        return [
            ["mkdir", str(place)],
            ["env", f"GIT_INDEX_FILE={place}/index", *git, "read-tree", "--reset", "-u", sha],
            ["bash", "-c", "true"],
            ["rm", "-rf", str(place)],
        ]

    return commands


class _Jobs:
    """Jobs of an executor."""

    def __init__(self, executor: Executor, request: JobRequestV1, workspaces: Workspaces) -> None:
        self._executor, self._request, self._workspaces = executor, request, workspaces

    async def round(self, turns: RoundCosts, count: int) -> None:
        for _ in range(count):
            whole, start = await self._job(1)
            turns.job_ms.append(whole)
            turns.start_ms.append(start)
        turns.step_ms.append(((await self._job(STEPS))[0] - whole) / (STEPS - 1))
        await _at_once(turns, count, lambda _: self._job(1), self._processor_seconds)

    async def _job(self, steps: int) -> tuple[float, float]:
        """Run a job; return its milliseconds, and those until its first step ran."""
        first: list[float] = []

        async def log(data: bytes) -> None:
            if b"begun" in data and not first:
                first.append(time.perf_counter())

        begun = time.perf_counter()
        spec = job("echo begun", *["true"] * (steps - 1))
        outcome = await self._executor.run(execution(spec, self._request), log, asyncio.Event())
        if outcome.state is not JobState.SUCCEEDED:
            raise RuntimeError(f"a job of the bench ended {outcome}")
        return 1000 * (time.perf_counter() - begun), 1000 * (first[0] - begun)

    def _processor_seconds(self) -> float:
        # Supervisors are children of the process from which they were forked.
        starter = self._workspaces.starter
        return _own_seconds() + (sum(processor_times(starter.pid)) if starter and starter.pid else 0.0)


class _Commands:
    """Commands without us."""

    def __init__(self, commands: Callable[[int], list[list[str]]], environment: dict[str, str]) -> None:
        self._commands, self._environment = commands, environment

    async def round(self, turns: RoundCosts, count: int) -> None:
        for number in range(count):
            begun = time.perf_counter()
            await self._run(number)
            turns.job_ms.append(1000 * (time.perf_counter() - begun))
            turns.start_ms.append(turns.job_ms[-1])
        await _at_once(turns, count, self._run_to_the_last_process, _own_seconds)

    async def _run_to_the_last_process(self, number: int) -> None:
        # A monitor leaves its podman and starts runtimes: their processor time counts, as that of our jobs' does.
        for command in self._commands(number):
            if await asyncio.to_thread(_run_with_descendants, command, self._environment):
                raise RuntimeError(f"{command} failed")

    async def _run(self, number: int) -> None:
        for command in self._commands(number):
            process = await asyncio.create_subprocess_exec(*command, env=self._environment)
            if await process.wait():
                raise RuntimeError(f"{command} failed")


async def _at_once(
    turns: RoundCosts, count: int, run: Callable[[int], Awaitable[object]], processor: Callable[[], float]
) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with free:
            await run(number)

    before, begun = processor(), time.perf_counter()
    await asyncio.gather(*map(one, range(count)))
    turns.per_second.append(count / (time.perf_counter() - begun))
    turns.processor_ms.append(1000 * (processor() - before) / count)


def _run_with_descendants(command: list[str], environment: dict[str, str]) -> int:
    """Run a command, wait for all its descendants, and return its exit code."""
    parent = os.fork()
    if parent == 0:
        become_subreaper()
        code, child = 1, os.posix_spawnp(command[0], command, environment)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.wait()
                code = os.waitstatus_to_exitcode(status) if pid == child else code
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1])


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
