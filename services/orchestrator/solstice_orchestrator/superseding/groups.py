"""Concurrency groups: who holds one, who is let go next, who makes way for somebody newer. Pure.

A group is held by a *holder*: a run, from its first job to its last, or a single job, while it waits for a slot and
runs. Groups of two repositories are apart, and what a stranger's workflow file names is the stranger's own. So are groups
of runs and groups of jobs, also when they have one name: a job asks for its group when its run already holds that of the run, so nobody ever waits in a circle.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.domain.seniority import Seniority
from solstice_orchestrator.domain.trust import V1_TRUST, realm


class GroupScope(StrEnum):
    """Who holds a group."""

    RUN = "run"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A run or job that holds a group or wants it, and has not ended."""

    holder: str
    """Run id or job id."""
    run_id: str
    seniority: Seniority
    """Of its run."""
    position: int = 0
    """Of a job in its workflow: the order among the jobs of one run."""
    mode: GroupMode = GroupMode.QUEUE
    holds: bool = False
    running: bool = False
    """It has something that runs, and so cannot end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """What is to be done about a group now; nothing, when both are empty."""

    let_go: str | None = None
    """The holder from now on."""
    superseded: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Who is to be cancelled, and the run that takes its place. Stays here until it has ended: safe to repeat."""


def group_key(
    scope: GroupScope, request: JobRequestV1, group: str, v1_trust: AbstractSet[Source] = V1_TRUST
) -> str:
    """What the members of one group have in common: the repository, as git fetches it, and whose file names the group."""
    return f"{scope.value}\n{request.source}\n{request.repo_url}\n{realm(request, v1_trust)}\n{group}"


def settle_group(members: Sequence[GroupMember]) -> GroupDecision:
    """What follows from who is there; repeating it changes nothing.

    Somebody who came with `cancel` ends all who are older, also when those come late; jobs of one run never end each
    other. Among those who stay the oldest is let go, once the holder has ended: one that is superseded and runs still
    holds.
    """
    cancelling = [member for member in members if member.mode is GroupMode.CANCEL]
    superseded = {
        member.holder: newer.run_id
        for member in members
        if (newer := _takes_the_place_of(member, cancelling)) is not None
    }
    held = any(member.holds and (member.running or member.holder not in superseded) for member in members)
    waiting = [member for member in members if not member.holds and member.holder not in superseded]
    first = min(waiting, key=_place, default=None)
    return GroupDecision(
        let_go=None if held or first is None else first.holder, superseded=MappingProxyType(superseded)
    )


def ahead_in_group(holder: str, members: Iterable[GroupMember]) -> Sequence[GroupMember]:
    """Who goes before `holder`: the one that holds the group, then the others in their order."""
    members = list(members)
    mine = next((member for member in members if member.holder == holder), None)
    if mine is None or mine.holds:
        return ()
    before = [each for each in members if each.holds or _place(each) < _place(mine)]
    return sorted(
        (each for each in before if each.holder != holder), key=lambda each: (not each.holds, _place(each))
    )


def _takes_the_place_of(member: GroupMember, cancelling: Iterable[GroupMember]) -> GroupMember | None:
    """The newest that came to end what is older than itself."""
    newer = [
        each for each in cancelling if each.run_id != member.run_id and each.seniority > member.seniority
    ]
    return max(newer, key=lambda each: each.seniority, default=None)


def _place(member: GroupMember) -> tuple[Seniority, int, str]:
    return member.seniority, member.position, member.holder
