"""A newer push of the same branch or change request ends the older run: which, and by whom. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.seniority import Seniority

BRANCHES: Final = "refs/heads/"
RERUN: Final = "rerun"
"""The event of a check that somebody at the forge had run again."""
USUAL_DEFAULT_BRANCHES: Final = frozenset({"main", "master", "trunk"})
"""Taken for the default branch when the request does not name it."""


class SupersedeRule(StrEnum):
    """The operator's word (setting `SUPERSEDE`): which older runs a newer push ends."""

    OFF = "off"
    WAITING = "waiting"
    """Those of which no job has started."""
    RUNNING = "running"
    """Those, and the ones that run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A planned run that has not ended, among those of one branch or change request."""

    run_id: str
    seniority: Seniority
    state: RunState
    commit_sha: str
    on_default_branch: bool = False
    asked: bool | None = None
    """What its workflow says about being superseded."""
    rerun: bool = False
    """Somebody asked for it by hand: it takes nobody's place."""
    awaiting: bool = False
    """Its jobs wait until somebody approves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPush:
    """The newest push of a branch or change request; its run may have ended long ago."""

    run_id: str
    seniority: Seniority
    commit_sha: str
    approves: bool = False
    """Somebody asked for this very commit to be built: nobody needs to approve another run of it."""


def supersede_key(request: JobRequestV1) -> str | None:
    """What runs have in common of which a newer one takes the place of an older one; None: it never does.

    A push to a branch, or a change request, at one forge, of one workflow. Tags are not moved to try again, and what
    was enqueued by hand, or is a check that somebody had run again, was meant.
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


def on_default_branch(request: JobRequestV1) -> bool:
    """Whether it is a push to the branch whose every commit counts: the one the request names, else a usual one."""
    if request.change_number is not None or request.ref is None or not request.ref.startswith(BRANCHES):
        return False
    branch = request.ref.removeprefix(BRANCHES)
    named = request.default_branch
    return branch == named if named is not None else branch in USUAL_DEFAULT_BRANCHES


def superseded(runs: Sequence[UnfinishedRun], newest: NewestPush, rule: SupersedeRule) -> Mapping[str, str]:
    """Which of the runs of one branch or change request are to be cancelled, and for which run; repeating it changes nothing.

    The newest of those that were not asked for by hand (`ancestry.py` tells which) takes the place of all older ones
    that may be ended, whichever of them was planned first.
    """
    return {
        each.run_id: newest.run_id
        for each in runs
        if each.run_id != newest.run_id
        and _older(each, newest)
        and (may_be_ended(each, rule) or _is_approved_by(each, newest))
    }


def may_be_ended(run: UnfinishedRun, rule: SupersedeRule) -> bool:
    """Whether a newer run may take its place."""
    if run.asked is False or rule is SupersedeRule.OFF or (run.on_default_branch and run.asked is not True):
        return False
    return rule is SupersedeRule.RUNNING or run.state is not RunState.RUNNING


def _is_approved_by(run: UnfinishedRun, newest: NewestPush) -> bool:
    """Whether it only waited for the word that the newest one is."""
    return run.awaiting and newest.approves and run.commit_sha == newest.commit_sha


def _older(run: UnfinishedRun, newest: NewestPush) -> bool:
    """Whoever asked for a run again meant what was there at that moment."""
    return not run.rerun or run.seniority < newest.seniority
