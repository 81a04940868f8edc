"""What caused a run, in the words of a workflow file. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.reruns import RERUN

BRANCHES: Final = "refs/heads/"
TAGS: Final = "refs/tags/"
MERGE_QUEUES: Final = f"{BRANCHES}gh-readonly-queue/"
"""Where GitHub's merge queue puts what it wants tested: gh-readonly-queue/BASE/..."""


class TriggerEvent(StrEnum):
    """The events that a workflow file can name, the same for every forge."""

    PUSH = "push"
    """A push to a branch."""
    TAG = "tag"
    CHANGE_REQUEST = "change-request"
    """A pull or merge request, or a command on one."""
    MERGE_GROUP = "merge-group"
    """A merge queue wants to know whether the result can be merged."""
    RELEASE = "release"
    SCHEDULE = "schedule"
    MANUAL = "manual"
    """A person or a program asked for this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The facts about a request that a workflow file can look at.

    Empty text for what it has not.
    """

    event: TriggerEvent
    branch: str = ""
    """The pushed branch, or the one that a merge queue merges into."""
    tag: str = ""
    target_branch: str = ""
    """The branch that a change request is to be merged into."""
    default_branch: str = ""
    repository: str = ""
    """What the forge calls it: `owner/name`."""
    is_requested: bool = False
    """Whether a person or a program asked for this run by hand, or for a check again."""

    def described(self) -> str:
        """Return words for people: `push of the branch main`."""
        match self.event:
            case TriggerEvent.PUSH:
                return f"push of the branch {self.branch}" if self.branch else "push"
            case TriggerEvent.TAG:
                return f"tag {self.tag}"
            case TriggerEvent.MERGE_GROUP:
                return f"merge-group of the branch {self.branch}"
            case _:
                return self.event.value


_BY_KIND: Final = {
    "change_request": TriggerEvent.CHANGE_REQUEST,
    "release": TriggerEvent.RELEASE,
    "schedule": TriggerEvent.SCHEDULE,
    "dispatch": TriggerEvent.MANUAL,
}
"""Events by the `event` of a request; of others, its ref decides."""
_REQUESTED: Final = frozenset({"dispatch", RERUN})


def trigger_of(request: JobRequestV1) -> Trigger:
    """Return what caused this request. A publisher may have left out any field."""
    ref = request.ref or ""
    event = _event(request, ref)
    if event is TriggerEvent.MERGE_GROUP:
        # .../BASE/pr-7-SHA, and a slash may be part of BASE.
        branch = ref.removeprefix(MERGE_QUEUES).rpartition("/")[0]
    else:
        own = ref.startswith(BRANCHES) and event is not TriggerEvent.CHANGE_REQUEST
        branch = ref.removeprefix(BRANCHES) if own else ""
    return Trigger(
        event=event,
        branch=branch,
        tag=ref.removeprefix(TAGS) if ref.startswith(TAGS) else "",
        target_branch=request.target_branch or "",
        default_branch=request.default_branch or "",
        repository=request.repo_full_name or "",
        is_requested=event is TriggerEvent.MANUAL or request.event in _REQUESTED,
    )


def _event(request: JobRequestV1, ref: str) -> TriggerEvent:
    if request.change_number is not None:
        return TriggerEvent.CHANGE_REQUEST
    if request.event in _BY_KIND:
        return _BY_KIND[request.event]
    if request.source is Source.MANUAL:
        return TriggerEvent.MANUAL
    if ref.startswith(TAGS):
        return TriggerEvent.TAG
    return TriggerEvent.MERGE_GROUP if ref.startswith(MERGE_QUEUES) else TriggerEvent.PUSH
