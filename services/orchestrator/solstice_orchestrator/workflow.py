"""A workflow file, `.solstice/workflow.kdl`, becomes the jobs of a run. Pure; the format is told in `docs/workflow.md`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.jobs import JobSpec, StepSpec
from solstice_orchestrator.kdl import Node, Position, read
from solstice_orchestrator.workflow_shape import (
    children,
    did_you_mean,
    duration,
    expect_arguments,
    expect_childless,
    expect_node,
    identifier,
    plain,
    properties,
    text,
)

MAX_FILE_BYTES: Final = 256 * 1024
MAX_NAME: Final = 100
MAX_LABEL: Final = 63
"""As long as `runs_on` of a request."""
MAX_JOBS: Final = 256
MAX_STEPS: Final = 100
MAX_ENVIRONMENT: Final = 200
MAX_VALUE_BYTES: Final = 32 * 1024
DEFAULT_TIMEOUT_SECONDS: Final = 3600.0

_START: Final = Position(line=1, column=1)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def parse_workflow(content: bytes, *, default_runs_on: str, only: str | None = None) -> tuple[JobSpec, ...]:
    """The jobs that a workflow file asks for, in the file's order.

    `default_runs_on` is the label of jobs that name none, themselves or by `defaults`. `only` keeps that one job and
    what it needs, directly or not. Raises InvalidWorkflow with the line and column of whatever is wrong.
    """
    draft = _Draft()
    for node in read(_decoded(content)):
        draft.take(node)
    if not draft.jobs:
        raise _START.problem('a workflow needs at least one job: job "test" { step run="..." }')
    _check_needs(draft.jobs)
    specs = tuple(job.spec(draft.defaults, default_runs_on) for job in draft.jobs.values())
    return specs if only is None else _chosen(specs, only)


def _decoded(content: bytes) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise _START.problem(
            f"a workflow file may be {MAX_FILE_BYTES // 1024} KiB long, this one has {len(content)} bytes"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        line = before.count("\n") + 1
        column = len(before) - before.rfind("\n")
        raise InvalidWorkflow(
            line, column, f"the byte 0x{content[error.start]:02x} here is not UTF-8"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """What jobs have when they say nothing themselves."""

    runs_on: str | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job as written, with the places that later checks may have to point at."""

    name: str
    runs_on: str | None
    timeout_seconds: float | None
    env: Mapping[str, str]
    needs: tuple[tuple[str, Position], ...]
    steps: tuple[StepSpec, ...]

    def spec(self, defaults: _Defaults, default_runs_on: str) -> JobSpec:
        return JobSpec(
            name=self.name,
            runs_on=self.runs_on or defaults.runs_on or default_runs_on,
            steps=self.steps,
            needs=tuple(name for name, _ in self.needs),
            env=MappingProxyType({**defaults.env, **self.env}),
            timeout_seconds=defaults.timeout_seconds
            if self.timeout_seconds is None
            else self.timeout_seconds,
        )


@dataclass(slots=True)
class _Draft:
    """The file, as far as it was read."""

    jobs: dict[str, _Job] = field(default_factory=dict)
    defaults: _Defaults = field(default_factory=_Defaults)
    _defaults_seen: bool = False

    def take(self, node: Node) -> None:
        expect_node(node, ("job", "defaults"), "at the top of a workflow")
        if node.name == "defaults":
            if self._defaults_seen:
                raise node.position.problem("'defaults' stands here a second time; once is enough")
            self._defaults_seen, self.defaults = True, _defaults(node)
            return
        job = _job(node)
        if job.name in self.jobs:
            raise node.arguments[0].position.problem(f"there is a job {job.name!r} already; names are unique")
        if len(self.jobs) == MAX_JOBS:
            raise node.position.problem(f"a workflow may have {MAX_JOBS} jobs, no more")
        self.jobs[job.name] = job


def _defaults(node: Node) -> _Defaults:
    expect_arguments(node, 0, "'defaults' takes no arguments")
    given = properties(node, ("runs-on", "timeout"))
    env: Mapping[str, str] = MappingProxyType({})
    for child in children(node, ("env",), "in 'defaults'", once=("env",)):
        env = _env(child)
    return _Defaults(
        runs_on=identifier(given["runs-on"], "a label", MAX_LABEL) if "runs-on" in given else None,
        timeout_seconds=duration(given["timeout"]) if "timeout" in given else DEFAULT_TIMEOUT_SECONDS,
        env=env,
    )


def _job(node: Node) -> _Job:
    expect_arguments(node, 1, 'a job has one name: job "test" { ... }')
    name = identifier(node.arguments[0], "the name of a job", MAX_NAME)
    given = properties(node, ("runs-on", "timeout"))
    env: Mapping[str, str] = MappingProxyType({})
    needs: list[tuple[str, Position]] = []
    steps: list[StepSpec] = []
    for child in children(node, ("step", "needs", "env"), "in a job", once=("env",)):
        if child.name == "env":
            env = _env(child)
        elif child.name == "needs":
            needs.extend(_needs(child, [known for known, _ in needs]))
        elif len(steps) == MAX_STEPS:
            raise child.position.problem(f"a job may have {MAX_STEPS} steps, no more")
        else:
            steps.append(_step(child, len(steps) + 1))
    if not steps:
        raise node.position.problem(f'the job {name!r} has no steps: step "unit tests" run="..."')
    return _Job(
        name=name,
        runs_on=identifier(given["runs-on"], "a label", MAX_LABEL) if "runs-on" in given else None,
        timeout_seconds=duration(given["timeout"]) if "timeout" in given else None,
        env=env,
        needs=tuple(needs),
        steps=tuple(steps),
    )


def _step(node: Node, number: int) -> StepSpec:
    given = properties(node, ("run", "timeout"))
    if len(node.arguments) > 1:
        raise node.arguments[1].position.problem('a step has one name, and run="..." is what it does')
    if "run" not in given:
        raise node.position.problem('a step needs run="...", the command to run')
    run = text(given["run"], "run")
    if not run.strip():
        raise given["run"].position.problem("run is empty; a step needs a command")
    name = f"step {number}"
    if node.arguments:
        name = text(node.arguments[0], "the name of a step").strip()
        if not 0 < len(name) <= MAX_NAME or _CONTROL.search(name):
            raise node.arguments[0].position.problem(
                f"the name of a step has between 1 and {MAX_NAME} characters, all on one line"
            )
    env: Mapping[str, str] = MappingProxyType({})
    for child in children(node, ("env",), "in a step", once=("env",)):
        env = _env(child)
    timeout = duration(given["timeout"]) if "timeout" in given else None
    return StepSpec(name=name, run=run, env=env, timeout_seconds=timeout)


def _needs(node: Node, known: Collection[str]) -> Iterator[tuple[str, Position]]:
    properties(node, ())
    expect_childless(node)
    if not node.arguments:
        raise node.position.problem('needs takes the names of jobs: needs "lint" "build"')
    seen = set(known)
    for argument in node.arguments:
        name = text(argument, "the name of a needed job")
        if name in seen:
            raise argument.position.problem(f"{name!r} is needed already; once is enough")
        seen.add(name)
        yield name, argument.position


def _env(node: Node) -> Mapping[str, str]:
    expect_arguments(node, 0, 'env takes a block: env { NAME "value" }')
    properties(node, ())
    if len(node.children) > MAX_ENVIRONMENT:
        raise node.position.problem(f"a block of env may set {MAX_ENVIRONMENT} variables, no more")
    env: dict[str, str] = {}
    for child in node.children:
        plain(child.annotation, child.position)
        if not _VARIABLE.fullmatch(child.name):
            raise child.position.problem(
                f"{child.name!r} cannot name a variable: letters, digits and '_', not first a digit"
            )
        if child.name.startswith("SOLSTICE_"):
            raise child.position.problem(
                f"{child.name!r}: the names that begin with SOLSTICE_ are set by Solstice CI"
            )
        if child.name in env:
            raise child.position.problem(f"{child.name!r} is set already in this block")
        properties(child, ())
        expect_childless(child)
        expect_arguments(child, 1, f'a variable has one value: {child.name} "value"')
        value = text(child.arguments[0], f"the value of {child.name}")
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise child.arguments[0].position.problem(
                f"the value of a variable may be {MAX_VALUE_BYTES // 1024} KiB long, no longer"
            )
        env[child.name] = value
    return MappingProxyType(env)


# -- what jobs need of each other ---------------------------------------------------------------------------------


def _check_needs(jobs: Mapping[str, _Job]) -> None:
    """Every needed job is there, and no job waits for itself, however many lie between."""
    for job in jobs.values():
        for name, position in job.needs:
            if name not in jobs:
                raise position.problem(f"there is no job {name!r} to need{did_you_mean(name, jobs)}")
    settled: set[str] = set()
    for start in jobs:
        # Depth first without recursion: 256 jobs in a row are allowed.
        path: list[tuple[str, Iterator[tuple[str, Position]]]] = [(start, iter(jobs[start].needs))]
        on_path = {start: 0}
        while path and start not in settled:
            name, rest = path[-1]
            for needed, position in rest:
                if needed in on_path:
                    circle = [step for step, _ in path[on_path[needed] :]]
                    raise position.problem(
                        f"these jobs wait for each other: {' needs '.join([*circle, needed])}"
                    )
                if needed not in settled:
                    on_path[needed] = len(path)
                    path.append((needed, iter(jobs[needed].needs)))
                    break
            else:
                settled.add(name)
                del on_path[name]
                path.pop()


def _chosen(specs: Sequence[JobSpec], only: str) -> tuple[JobSpec, ...]:
    """That job and what it needs, in the file's order."""
    known = {spec.name: spec for spec in specs}
    if only not in known:
        raise _START.problem(
            f"the request asks for the job {only!r}, which is not in this workflow{did_you_mean(only, known)}"
        )
    wanted, todo = {only}, [only]
    while todo:
        fresh = [name for name in known[todo.pop()].needs if name not in wanted]
        wanted.update(fresh)
        todo.extend(fresh)
    return tuple(spec for spec in specs if spec.name in wanted)
