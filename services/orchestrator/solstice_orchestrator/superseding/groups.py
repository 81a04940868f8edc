"""Concurrency groups: who holds one, who is next, and who is cancelled. Pure.

A group is held by a *holder*: a run, from its first job to its last, or a single job, while it waits for a slot and
runs. Two repositories never share a group, and a group in an untrusted author's workflow file is that author's own.
Groups of runs and groups of jobs are separate, also when they have one name: a job asks for its group when its run
already holds that of the run, so there is no deadlock.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.domain.trust import V1_TRUST, realm
from solstice_orchestrator.superseding.seniority import Seniority


class GroupScope(StrEnum):
    """What kind of holder a group has."""

    RUN = "run"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """An unfinished run or job that holds a group or waits for it."""

    holder: str
    """Run id or job id."""
    run_id: str
    seniority: Seniority
    """The seniority of its run."""
    position: int
    """The position of a job in its workflow, which orders the jobs of one run."""
    mode: GroupMode
    holds: bool
    running: bool
    """It has a running job, and so cannot end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """The changes to a group now; none, when both fields are empty."""

    new_holder: str | None
    """The new holder."""
    superseded: Mapping[str, str]
    """The members to cancel, each with the run that replaces it.

    A member stays here until it has ended: safe to repeat.
    """


def group_key(
    scope: GroupScope, request: JobRequestV1, group: str, v1_trust: AbstractSet[Source] = V1_TRUST
) -> str:
    """Return the key that all members of one group share.

    It names the repository, as git fetches it, and whose workflow file names the group.
    """
    return f"{scope.value}\n{request.source}\n{request.repo_url}\n{realm(request, v1_trust)}\n{group}"


def settle_group(members: Sequence[GroupMember]) -> GroupDecision:
    """Decide the next holder and the members to cancel; repeating it changes nothing.

    A member with `cancel` ends all older ones, also when those come late; jobs of one run never end each other. Among
    the others the oldest becomes the holder, once the current holder has ended: a holder that is superseded and still
    runs keeps the group.
    """
    cancelling = [member for member in members if member.mode is GroupMode.CANCEL]
    superseded = {
        member.holder: newer.run_id
        for member in members
        if (newer := _takes_the_place_of(member, cancelling)) is not None
    }
    has_holder = any(
        member.holds and (member.running or member.holder not in superseded) for member in members
    )
    waiting = [member for member in members if not member.holds and member.holder not in superseded]
    first = min(waiting, key=_order_key, default=None)
    return GroupDecision(
        new_holder=None if has_holder or first is None else first.holder,
        superseded=MappingProxyType(superseded),
    )


def ahead_in_group(holder: str, members: Iterable[GroupMember]) -> Sequence[GroupMember]:
    """Return the members before `holder`: the current holder first, the others in order."""
    members = list(members)
    own = next((member for member in members if member.holder == holder), None)
    if own is None or own.holds:
        return ()
    before = [each for each in members if each.holds or _order_key(each) < _order_key(own)]
    return sorted(
        (each for each in before if each.holder != holder),
        key=lambda each: (not each.holds, _order_key(each)),
    )


def _takes_the_place_of(member: GroupMember, cancelling: Iterable[GroupMember]) -> GroupMember | None:
    """Return the newest member that cancels this older one."""
    newer = [
        each for each in cancelling if each.run_id != member.run_id and each.seniority > member.seniority
    ]
    return max(newer, key=lambda each: each.seniority, default=None)


def _order_key(member: GroupMember) -> tuple[Seniority, int, str]:
    return member.seniority, member.position, member.holder
