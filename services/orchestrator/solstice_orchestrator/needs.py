"""What becomes of the jobs that need others, once those have ended. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solstice_orchestrator.jobs import JobState, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A job as far as its neighbours are concerned."""

    state: JobState
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unblocked:
    """A blocked job that need not wait for others any more."""

    name: str
    state: JobState
    reason: Reason


def unblock(nodes: Mapping[str, Node]) -> Sequence[Unblocked]:
    """The blocked jobs that may wait for a slot now, or are skipped; skipping one may skip others."""
    states = {name: node.state for name, node in nodes.items()}
    blocked = {name: node.needs for name, node in nodes.items() if node.state is JobState.BLOCKED}
    moved: list[Unblocked] = []
    settled = False
    while not settled:
        settled = True
        for name, needs in list(blocked.items()):
            ends = [states[need] for need in needs]
            if any(end.final and end is not JobState.SUCCEEDED for end in ends):
                new = Unblocked(name=name, state=JobState.SKIPPED, reason=Reason.NEEDS_FAILED)
            elif all(end is JobState.SUCCEEDED for end in ends):
                new = Unblocked(name=name, state=JobState.WAITING, reason=Reason.NEEDS_MET)
            else:
                continue
            moved.append(new)
            states[name] = new.state
            del blocked[name]
            settled = False
    return moved
