"""Read the nodes `artifacts` of a job: what it gets from jobs that it needs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from solstice_orchestrator.domain.handing_spec import NeededArtifact
from solstice_orchestrator.domain.jobs import ArtifactSpec
from solstice_orchestrator.workflow.env_node import Fill
from solstice_orchestrator.workflow.job_files.artifact_node import MAX_NAME, MAX_PATH
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition
from solstice_orchestrator.workflow.shape import (
    did_you_mean,
    expect_childless,
    identifier,
    properties,
    text,
)

MAX_NEEDED: Final = 100
"""Artifacts that one job gets, each of a matrix counted."""


class HandingJob(Protocol):
    """A job that hands out artifacts."""

    @property
    def name(self) -> str: ...

    @property
    def artifacts(self) -> Sequence[ArtifactSpec]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRequest:
    """An artifact as the file names it, before it is known which job has it."""

    name: str
    position: SourcePosition
    job: str | None
    """Its job, or the matrix of which each job hands it out; None: the file does not say."""
    job_position: SourcePosition
    into: str


def read_needed(node: KdlNode, fill: Fill) -> tuple[ArtifactRequest, ...]:
    """Read what a `job` node gets from others."""
    return tuple(each for child in node.children if child.name == "artifacts" for each in _named(child, fill))


def _named(node: KdlNode, fill: Fill) -> Iterator[ArtifactRequest]:
    expect_childless(node)
    values = properties(node, ("from", "into"))
    if not node.arguments:
        raise node.position.problem('artifacts takes names of artifacts of needed jobs: artifacts "dist"')
    job = values.get("from")
    for argument in node.arguments:
        yield ArtifactRequest(
            name=identifier(argument, "the name of an artifact", MAX_NAME, fill=fill),
            position=argument.position,
            job=fill(text(job, "from"), job.position) if job else None,
            job_position=job.position if job else argument.position,
            into=_directory(values["into"], fill) if "into" in values else "",
        )


def _directory(value: KdlValue, fill: Fill) -> str:
    path = fill(text(value, "into"), value.position)
    if (
        not 0 < len(path) <= MAX_PATH
        or path.startswith("/")
        or any(part in {"", ".", ".."} for part in path.split("/"))
    ):
        raise value.position.problem(
            f'{path[:80]!r} is no directory in the workspace; write it as into="from/build"'
        )
    return path


def needed_artifacts(
    request: Sequence[ArtifactRequest], needs: Mapping[str, Sequence[HandingJob]]
) -> tuple[NeededArtifact, ...]:
    """Return each artifact with its job.

    `needs` are the jobs that the job needs, by their names in the file.
    """
    found: dict[NeededArtifact, None] = {}
    for each in request:
        for artifact in _of_jobs(each, needs):
            if artifact in found:
                raise each.position.problem(
                    f"the job gets {each.name!r} of {artifact.job!r} there already; once is enough"
                )
            if len(found) == MAX_NEEDED:
                raise each.position.problem(f"a job may get {MAX_NEEDED} artifacts of others, no more")
            found[artifact] = None
    return tuple(found)


def _of_jobs(request: ArtifactRequest, needs: Mapping[str, Sequence[HandingJob]]) -> Sequence[NeededArtifact]:
    if not needs:
        raise request.position.problem(
            f'a job gets artifacts of jobs that it needs: write needs "build" for the job that has {request.name!r}'
        )
    jobs = _jobs_of(request, needs)
    having = [job for job in jobs if request.name in {each.name for each in job.artifacts}]
    if not having:
        known = list(dict.fromkeys(each.name for job in jobs for each in job.artifacts))
        whose = "no job that it needs has" if request.job is None else f"the job {request.job!r} has no"
        raise request.position.problem(
            f"{whose} {'an ' if request.job is None else ''}artifact {request.name!r}{did_you_mean(request.name, known)}"
        )
    if len(having) == 1:
        return [NeededArtifact(job=having[0].name, name=request.name, into=request.into)]
    if request.job is None:
        listed = ", ".join(repr(job.name) for job in having[:3]) + (", ..." if having[3:] else "")
        raise request.position.problem(
            f'several jobs have an artifact {request.name!r}: {listed}; say which one: from="{having[0].name}"'
        )
    return [
        NeededArtifact(job=job.name, name=request.name, into="/".join(filter(None, (request.into, job.name))))
        for job in having
    ]


def _jobs_of(request: ArtifactRequest, needs: Mapping[str, Sequence[HandingJob]]) -> Sequence[HandingJob]:
    """Return the needed jobs that may have it."""
    by_name = {**{job.name: [job] for jobs in needs.values() for job in jobs}, **needs}
    if request.job is None:
        return [job for jobs in needs.values() for job in jobs]
    if request.job not in by_name:
        raise request.job_position.problem(
            f"{request.job!r} is not among the jobs that this job needs{did_you_mean(request.job, by_name)}"
        )
    return by_name[request.job]
