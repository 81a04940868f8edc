"""Which jobs of a run a rerun repeats: all, or those that failed. Pure."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobSpec
from solstice_orchestrator.domain.needs import DependencyNode

RERUN: Final = "rerun"
"""The event of a check that a person repeated at the forge."""


class RerunRefusal(StrEnum):
    """Why a rerun is refused."""

    NOT_ENDED = "not_ended"
    """Which of its jobs fail is not known yet."""
    NOTHING_FAILED = "nothing_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunScope:
    """Whether a run is a rerun, and which jobs it has."""

    requested: bool
    """A person asked for it, after another run of the same request."""
    only: frozenset[str] | None
    """Names of its jobs; None: all jobs of its workflow."""


NOT_A_RERUN: Final = RerunScope(requested=False, only=None)


def rerun_scope_of(rerun_of: str | None, only_jobs: str | None) -> RerunScope:
    """Read the scope from the columns of these names."""
    only = None if only_jobs is None else frozenset(json.loads(only_jobs))
    return RerunScope(requested=rerun_of is not None, only=only)


def failed_jobs(nodes: Mapping[str, DependencyNode]) -> frozenset[str] | RerunRefusal | None:
    """Names of the jobs to repeat: those that failed, and their dependents.

    A job that did not succeed counts as failed; dependents are repeated in any state. None, which means all, for a run
    that failed before it had jobs.
    """
    if any(not node.state.final for node in nodes.values()):
        return RerunRefusal.NOT_ENDED
    if not nodes:
        return None
    failed = {name for name, node in nodes.items() if node.state is not JobState.SUCCEEDED}
    # A condition left out what is skipped beside successes alone.
    if all(nodes[name].state is JobState.SKIPPED for name in failed):
        return RerunRefusal.NOTHING_FAILED
    return frozenset(_with_dependents(failed, nodes))


def job_with_dependents(name: str, nodes: Mapping[str, DependencyNode]) -> frozenset[str] | RerunRefusal:
    """Names of one job, its dependents, and their needs that did not succeed."""
    if any(not node.state.final for node in nodes.values()):
        return RerunRefusal.NOT_ENDED
    names = {name}
    while True:
        names = _with_dependents(names, nodes)
        needed = {need for each in names for need in nodes[each].needs if need in nodes}
        unmet = {need for need in needed - names if nodes[need].state is not JobState.SUCCEEDED}
        if not unmet:
            return frozenset(names)
        names |= unmet


def _with_dependents(names: Collection[str], nodes: Mapping[str, DependencyNode]) -> set[str]:
    """Return these jobs and their direct and indirect dependents."""
    selected = set(names)
    while more := {
        name for name, node in nodes.items() if name not in selected and selected & set(node.needs)
    }:
        selected |= more
    return selected


def selected_jobs(jobs: Sequence[JobSpec], only: Collection[str] | None) -> Sequence[JobSpec]:
    """Return the jobs named in `only`, or all; their other needs have succeeded before."""
    if only is None:
        return jobs
    return [
        replace(job, needs=tuple(need for need in job.needs if need in only))
        for job in jobs
        if job.name in only
    ]
