"""Which older runs a newer push of a branch or change request ends. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.reruns import RERUN
from solstice_orchestrator.domain.trust import BRANCHES
from solstice_orchestrator.superseding.seniority import Seniority


class SupersedeRule(StrEnum):
    """Which older runs a newer push ends (the operator's setting `SUPERSEDE`)."""

    OFF = "off"
    WAITING = "waiting"
    """Runs of which no job has started."""
    RUNNING = "running"
    """Waiting runs, and running ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """An unfinished, planned run of one branch or change request."""

    run_id: str
    seniority: Seniority
    state: RunState
    commit_sha: str
    on_default_branch: bool = False
    supersede: bool | None = None
    """Its workflow's `supersede`; None: not given."""
    rerun: bool = False
    """A person asked for it by hand: it replaces no other run."""
    awaiting: bool = False
    """Its jobs wait for approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPush:
    """The newest push of a branch or change request; its run may have ended."""

    run_id: str
    seniority: Seniority
    commit_sha: str
    approves: bool = False
    """A person asked to build this very commit, so no other run of it needs approval."""


def supersede_key(request: JobRequestV1) -> str | None:
    """Return the key of runs that replace each other; None: the run replaces none.

    It names a branch or a change request, a forge and a workflow. Tags are not moved to try again, and runs that a
    person enqueued or repeated are intended.
    """
    if request.event == RERUN:
        return None
    if request.change_number is not None:
        target = f"#{request.change_number}"
    elif request.event == "push" and request.ref is not None and request.ref.startswith(BRANCHES):
        target = request.ref
    else:
        return None
    what = (request.event, request.workflow_path, request.workflow_job_id)
    return "\n".join((request.source, request.repo_url, target, *(part or "" for part in what)))


def superseded(runs: Sequence[UnfinishedRun], newest: NewestPush, rule: SupersedeRule) -> Mapping[str, str]:
    """Return the runs to cancel, each with the run that replaces it.

    `runs` are those of one branch or change request; repeating it changes nothing. The newest run that no person asked
    for by hand (`ancestry.py` finds it) replaces all older ones that may be ended, in any order of planning.
    """
    return {
        each.run_id: newest.run_id
        for each in runs
        if each.run_id != newest.run_id
        and _older(each, newest)
        and (may_be_ended(each, rule) or _is_approved_by(each, newest))
    }


def may_be_ended(run: UnfinishedRun, rule: SupersedeRule) -> bool:
    """Return whether a newer run may replace this one."""
    if (
        run.supersede is False
        or rule is SupersedeRule.OFF
        or (run.on_default_branch and run.supersede is not True)
    ):
        return False
    return rule is SupersedeRule.RUNNING or run.state is not RunState.RUNNING


def _is_approved_by(run: UnfinishedRun, newest: NewestPush) -> bool:
    """Return whether it only waits for the approval that the newest push has."""
    return run.awaiting and newest.approves and run.commit_sha == newest.commit_sha


def _older(run: UnfinishedRun, newest: NewestPush) -> bool:
    """Whether the newest push may replace the run: a rerun only when it is older.

    A person who repeats a run means the state at that moment.
    """
    return not run.rerun or run.seniority < newest.seniority
