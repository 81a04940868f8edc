"""Read a workflow file, `.solstice/workflow.kdl`, into the jobs of a run. Pure.

`docs/workflow.md` describes the format.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import JobSpec, RunSpec
from solstice_orchestrator.workflow.conditions.condition_node import EACH_EVENT, BuiltEvents, JobIf, read_on
from solstice_orchestrator.workflow.conditions.expression import Vocabulary
from solstice_orchestrator.workflow.conditions.inputs import NO_INPUTS, InputSpec, read_input
from solstice_orchestrator.workflow.conditions.trigger import Trigger
from solstice_orchestrator.workflow.job_nodes import (
    JobDefaults,
    JobDraft,
    read_concurrency,
    read_defaults,
    read_jobs,
)
from solstice_orchestrator.workflow.job_template import JobTemplate, read_template
from solstice_orchestrator.workflow.kdl import KdlNode, SourcePosition, read
from solstice_orchestrator.workflow.shape import (
    did_you_mean,
    duration,
    expect_arguments,
    expect_childless,
    expect_node,
    properties,
    truth,
)

MAX_FILE_BYTES: Final = 256 * 1024
MAX_JOBS: Final = 256
MAX_PLAN_CHARACTERS: Final = 4 * 1024 * 1024
"""The limit for all jobs together.

A matrix, and the variables of `defaults`, multiply the content of a small file.
"""
MAX_RUN_SECONDS: Final = 7 * 24 * 3600.0

_START: Final = SourcePosition(line=1, column=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """The content of a workflow file: jobs in order, those of a matrix together."""

    jobs: tuple[JobSpec, ...]
    run: RunSpec
    conditions: Mapping[str, JobIf]
    """The `if` of each job by its name."""
    events: BuiltEvents = EACH_EVENT
    inputs: Mapping[str, InputSpec] = field(default_factory=lambda: NO_INPUTS)
    characters: int = 0
    """How many the scripts and variables of all jobs have."""

    def needs_paths(self, trigger: Trigger) -> bool:
        """Return whether changed paths decide what a run gets."""
        return self.events.needs_paths(trigger) or any(
            self.conditions[job.name].needs_paths for job in self.jobs
        )


def parse_workflow(content: bytes, *, default_runs_on: str, only: str | None = None) -> Workflow:
    """Read a workflow file.

    `default_runs_on` is the label of jobs that name none, themselves or by `defaults`. `only` keeps that one job (or
    all jobs of that matrix) and its needs, direct or not. Raises InvalidWorkflow with the line and column of the
    problem.
    """
    draft = _Draft()
    nodes = read(_decoded(content))
    # Jobs name inputs and templates, so these are read first.
    for node in sorted(nodes, key=lambda node: node.name not in {"input", "template"}):
        draft.take(node)
    if not draft.jobs:
        raise _START.problem('a workflow needs at least one job: job "test" { step run="..." }')
    _check_needs({written: jobs[0] for written, jobs in draft.jobs.items()})
    specs = tuple(_specs(draft, default_runs_on))
    return Workflow(
        jobs=specs if only is None else _chosen(specs, draft.names, only),
        run=draft.run,
        conditions={
            job.name: job.condition.with_jobs(draft.names) for jobs in draft.jobs.values() for job in jobs
        },
        events=draft.events,
        inputs=MappingProxyType(draft.inputs),
        characters=sum(map(_characters, specs)),
    )


MAX_REMEMBERED: Final = 64
MAX_REMEMBERED_CHARACTERS: Final = 128 * 1024
_remembered: Final = dict[tuple[bytes, str, str | None], Workflow]()


def remembered_workflow(content: bytes, *, default_runs_on: str, only: str | None = None) -> Workflow:
    """`parse_workflow` with a cache: the pushes of a burst often have the same file.

    Large workflows are not cached, so that the cache stays small.
    """
    key = (content, default_runs_on, only)
    if (known := _remembered.get(key)) is not None:
        return known
    workflow = parse_workflow(content, default_runs_on=default_runs_on, only=only)
    if len(content) + workflow.characters <= MAX_REMEMBERED_CHARACTERS:
        # Threads plan: each of these calls is one step for them.
        if len(_remembered) >= MAX_REMEMBERED:
            _remembered.clear()
        _remembered[key] = workflow
    return workflow


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


@dataclass(slots=True)
class _Draft:
    """What was read of the file so far."""

    jobs: dict[str, Sequence[JobDraft]] = field(default_factory=dict)
    """Drafts by the name as written; several for a matrix."""
    defaults: JobDefaults = field(default_factory=JobDefaults)
    run: RunSpec = field(default_factory=RunSpec)
    events: BuiltEvents = EACH_EVENT
    inputs: dict[str, InputSpec] = field(default_factory=dict)
    templates: dict[str, JobTemplate] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """For each written name, the names of its jobs."""
        return {written: [job.name for job in jobs] for written, jobs in self.jobs.items()}

    def take(self, node: KdlNode) -> None:
        expect_node(
            node,
            ("job", "defaults", "on", "timeout", "concurrency", "supersede", "input", "template"),
            "at the top of a workflow",
        )
        if node.name == "job":
            self._take_jobs(node)
            return
        if node.name == "template":
            name, template = read_template(node, self.templates)
            self.templates[name] = template
            return
        if node.name == "input":
            spec = read_input(node, self.inputs)
            self.inputs[spec.name] = spec
            return
        if node.name in self._seen:
            raise node.position.problem(f"{node.name!r} stands here a second time; once is enough")
        self._seen.add(node.name)
        match node.name:
            case "defaults":
                self.defaults = read_defaults(node)
            case "on":
                self.events = read_on(node)
            case "concurrency":
                self.run = replace(self.run, concurrency=read_concurrency(node))
            case "timeout":
                _one_argument(node, 'timeout takes one duration: timeout "2h"')
                self.run = replace(
                    self.run, timeout_seconds=duration(node.arguments[0], longest=MAX_RUN_SECONDS)
                )
            case _:
                rule = "supersede takes #true or #false"
                _one_argument(node, rule)
                self.run = replace(self.run, supersede=truth(node.arguments[0], rule))

    def _take_jobs(self, node: KdlNode) -> None:
        jobs = read_jobs(node, Vocabulary(inputs=self.inputs), self.templates)
        first = jobs[0]
        for name in dict.fromkeys([first.written, *(job.name for job in jobs)]):
            if name in self._names:
                raise first.position.problem(f"there is a job {name!r} already; names are unique")
            self._names.add(name)
        if len({job.name for job in jobs}) < len(jobs):
            raise first.position.problem(
                "two jobs of this matrix would have one name: of the values, letters, digits, '.', '_' and '-' count"
            )
        if sum(map(len, self.jobs.values())) + len(jobs) > MAX_JOBS:
            raise node.position.problem(f"a workflow may have {MAX_JOBS} jobs, no more")
        self.jobs[first.written] = jobs


def _one_argument(node: KdlNode, rule: str) -> None:
    expect_arguments(node, 1, rule)
    properties(node, ())
    expect_childless(node)


def _specs(draft: _Draft, default_runs_on: str) -> Iterator[JobSpec]:
    left = MAX_PLAN_CHARACTERS
    for jobs in draft.jobs.values():
        for job in jobs:
            spec = job.spec(draft.defaults, default_runs_on, draft.jobs)
            left -= _characters(spec)
            if left < 0:
                raise job.position.problem(
                    f"with this job the workflow holds more than {MAX_PLAN_CHARACTERS // 1024 // 1024} MiB of "
                    "scripts and variables, every job of a matrix counted"
                )
            yield spec


def _characters(spec: JobSpec) -> int:
    texts = [*spec.needs, *spec.env, *spec.env.values()]
    for step in spec.steps:
        texts += [step.name, step.run, *step.env, *step.env.values()]
    for service in spec.container.services:
        texts += [service.name, service.ready or "", *service.env, *service.env.values()]
    texts += [part for artifact in spec.artifacts for part in (artifact.name, artifact.path)]
    texts += [
        part for cache in spec.caches for part in (cache.name, cache.key, *cache.paths, *cache.fallbacks)
    ]
    texts += [part for output in spec.outputs for part in (output.name, output.text or "")]
    texts += [needed.variable for needed in spec.needed_outputs]
    return sum(map(len, texts))


# -- needs between jobs -------------------------------------------------------------------------------------------


def _check_needs(jobs: Mapping[str, JobDraft]) -> None:
    """Check that every needed job exists, and that no job needs itself, even indirectly."""
    for job in jobs.values():
        for name, position in job.needs:
            if name not in jobs:
                raise position.problem(f"there is no job {name!r} to need{did_you_mean(name, jobs)}")
    settled: set[str] = set()
    for start in jobs:
        # Depth first without recursion: 256 jobs in a row are allowed.
        path: list[tuple[str, Iterator[tuple[str, SourcePosition]]]] = [(start, iter(jobs[start].needs))]
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


def _chosen(specs: Sequence[JobSpec], names: Mapping[str, Sequence[str]], only: str) -> tuple[JobSpec, ...]:
    """Return the job or matrix named `only`, and its needs, in the file's order."""
    by_name = {spec.name: spec for spec in specs}
    known = {**{name: [name] for name in by_name}, **names}
    if only not in known:
        raise _START.problem(
            f"the request asks for the job {only!r}, which is not in this workflow{did_you_mean(only, known)}"
        )
    todo = list(known[only])
    remaining = set(todo)
    while todo:
        fresh = [name for name in by_name[todo.pop()].needs if name not in remaining]
        remaining.update(fresh)
        todo.extend(fresh)
    return tuple(spec for spec in specs if spec.name in remaining)
