"""What is run again when somebody asks for a run once more: all of it, or what failed of it. Pure."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobSpec
from solstice_orchestrator.domain.needs import DependencyNode


class RerunRefusal(StrEnum):
    """Why there is nothing to run again."""

    NOT_ENDED = "not_ended"
    """It is not known yet what fails of it."""
    NOTHING_FAILED = "nothing_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunScope:
    """Whether a run is another one again, and how much of it."""

    asked: bool
    """By hand, after another run of the same request."""
    only: frozenset[str] | None
    """Names of its jobs; None: all that its workflow asks for."""


NOT_A_RERUN: Final = RerunScope(asked=False, only=None)


def rerun_scope_of(rerun_of: str | None, only_jobs: str | None) -> RerunScope:
    """From the columns of these names."""
    only = None if only_jobs is None else frozenset(json.loads(only_jobs))
    return RerunScope(asked=rerun_of is not None, only=only)


def failed_jobs(nodes: Mapping[str, DependencyNode]) -> frozenset[str] | RerunRefusal | None:
    """The jobs of a run (by name) that did not succeed, and those that need one of them, however they ended.

    None, which means all, for a run that failed before it had any.
    """
    if any(not node.state.final for node in nodes.values()):
        return RerunRefusal.NOT_ENDED
    if not nodes:
        return None
    found = {name for name, node in nodes.items() if node.state is not JobState.SUCCEEDED}
    if not found:
        return RerunRefusal.NOTHING_FAILED
    return frozenset(_with_dependents(found, nodes))


def job_with_dependents(name: str, nodes: Mapping[str, DependencyNode]) -> frozenset[str] | RerunRefusal:
    """One job of these, what needs it, and what they need that did not succeed."""
    if any(not node.state.final for node in nodes.values()):
        return RerunRefusal.NOT_ENDED
    found = {name}
    while True:
        found = _with_dependents(found, nodes)
        needed = {need for each in found for need in nodes[each].needs if need in nodes}
        unmet = {need for need in needed - found if nodes[need].state is not JobState.SUCCEEDED}
        if not unmet:
            return frozenset(found)
        found |= unmet


def _with_dependents(names: Collection[str], nodes: Mapping[str, DependencyNode]) -> set[str]:
    """These jobs, and those that need one of them, directly or not."""
    found = set(names)
    while more := {name for name, node in nodes.items() if name not in found and found & set(node.needs)}:
        found |= more
    return found


def selected_jobs(jobs: Sequence[JobSpec], only: Collection[str] | None) -> Sequence[JobSpec]:
    """These jobs alone; what they need of the others has succeeded before."""
    if only is None:
        return jobs
    return [
        replace(job, needs=tuple(need for need in job.needs if need in only))
        for job in jobs
        if job.name in only
    ]
