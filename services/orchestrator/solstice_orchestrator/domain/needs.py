"""Which blocked jobs may start or are skipped once their needs have ended. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobCondition, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyNode:
    """A job with what its dependents must know of it."""

    state: JobState
    needs: tuple[str, ...]
    condition: JobCondition = JobCondition.SUCCESS
    later: str = ""
    """What is to be decided about the ends of its needs; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnblockedJob:
    """A job that is blocked no more: it waits for a slot, or is skipped."""

    name: str
    state: JobState
    reason: Reason
    detail: str = ""
    """The condition that leaves it out."""


def _always_met(_later: str, _states: Mapping[str, JobState]) -> str:
    return ""


def unblock(
    nodes: Mapping[str, DependencyNode],
    unmet: Callable[[str, Mapping[str, JobState]], str] = _always_met,
) -> Sequence[UnblockedJob]:
    """Return the blocked jobs that may now wait for a slot, or are skipped.

    `unmet` decides what a node has `later`, by the states of all jobs: it returns the condition when it does not hold.
    Skipping one job may skip or unblock others; these are among the result.
    """
    states = {name: node.state for name, node in nodes.items()}
    blocked = {name: node for name, node in nodes.items() if node.state is JobState.BLOCKED}
    moved: list[UnblockedJob] = []
    settled = False
    while not settled:
        settled = True
        for name, node in list(blocked.items()):
            new = _after(node.condition, [states[need] for need in node.needs])
            if new is None:
                continue
            detail = unmet(node.later, states) if node.later and new is JobState.WAITING else ""
            if detail:
                new, reason = JobState.SKIPPED, Reason.CONDITION_UNMET
            else:
                reason = Reason.NEEDS_MET if new is JobState.WAITING else Reason.NEEDS_FAILED
            moved.append(UnblockedJob(name=name, state=new, reason=reason, detail=detail))
            states[name] = new
            del blocked[name]
            settled = False
    return moved


def _after(condition: JobCondition, ends: Collection[JobState]) -> JobState | None:
    """Return the new state of a job with needs in these states; None: still blocked."""
    if condition is JobCondition.SUCCESS and any(end.final and end is not JobState.SUCCEEDED for end in ends):
        return JobState.SKIPPED
    return JobState.WAITING if all(end.final for end in ends) else None
