"""Calls of GitLab's API: commit statuses, and what a delivery lacks. Pure.

Source: docs.gitlab.com/api/commits ("Set commit pipeline status": name, description, target_url and ref of at most 255
characters), /api/rest/authentication, /security/rate_limits.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from solstice_common.messages.states import JobState
from solstice_forge.remote.protocol import (
    CallPace,
    ChangeRequestHead,
    CheckCalls,
    CommitStatus,
    ForgeAccount,
    ForgeCall,
    commit_id,
    is_missing,
    name_in,
    nothing,
)
from solstice_forge.remote.texts import link, shortened

PACE: Final = CallPace(interval_seconds=0.05, burst=60, at_once=4)
"""GitLab.com allows 2,000 calls a minute to one user; this is 1,260."""
CHECKS: Final[CheckCalls | None] = None
TEXT_CHARACTERS: Final = 255
DEVELOPER: Final = 30

_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobState.RUNNING: "running",
        JobState.SUCCEEDED: "success",
        JobState.SKIPPED: "success",
        JobState.FAILED: "failed",
        JobState.TIMED_OUT: "failed",
        JobState.ERRORED: "failed",
        JobState.CANCELLED: "canceled",
    }
)
"""Every other state is pending. `skipped` becomes success with its reason: only newer versions know the word."""


def api_url(url: str) -> str:
    return f"{url.rstrip('/')}/api/v4"


def headers(token: str) -> Mapping[str, str]:
    return {"accept": "application/json", "private-token": token}


def project_path(repository: str) -> str:
    """Return the path of a project: its full name is one encoded segment."""
    return f"/projects/{quote(repository, safe='')}"


def set_status(status: CommitStatus) -> ForgeCall[None]:
    body: dict[str, object] = {
        "name": shortened(status.context, TEXT_CHARACTERS),
        "state": _STATES.get(status.state, "pending"),
        "description": shortened(status.description, TEXT_CHARACTERS),
    }
    if target := link(status.target_url, TEXT_CHARACTERS):
        body["target_url"] = target
    branch = _branch(status.ref)
    if branch is not None and len(branch) <= TEXT_CHARACTERS:
        body["ref"] = branch
    return ForgeCall(
        method="POST",
        path=f"{project_path(status.repository)}/statuses/{status.commit_sha}",
        body=body,
        unread=True,
        read=nothing,
        already=_shows_it_already,
    )


def _branch(ref: str | None) -> str | None:
    """Return the branch or tag; None for a merge request's ref."""
    for prefix in ("refs/heads/", "refs/tags/"):
        if ref is not None and ref.startswith(prefix):
            return ref.removeprefix(prefix)
    return None


def _shows_it_already(status: int, detail: str) -> bool:
    """Whether the refusal means that the commit already shows this state.

    The same state twice is an error until GitLab 18: `Cannot transition status via :enqueue from :pending`.
    """
    words = detail.lower()
    return status == 400 and "cannot transition status" in words and _same_state(words)  # noqa: PLR2004  Bad Request


_SAME_STATE: Final = (
    ("via :enqueue", "from :pending"),
    ("via :run", "from :running"),
    ("via :success", "from :success"),
    ("via :drop", "from :failed"),
    ("via :cancel", "from :canceled"),
)


def _same_state(words: str) -> bool:
    return any(event in words and state in words for event, state in _SAME_STATE)


def find_commit(repository: str, ref: str) -> ForgeCall[str]:
    """Ask /api/branches or /api/tags for the commit.

    A tag's `commit` is the commit it leads to, its `target` the tag object.
    """
    kind, name = ref.removeprefix("refs/").split("/", 1)
    what = "tags" if kind == "tags" else "branches"
    return ForgeCall(
        method="GET",
        path=f"{project_path(repository)}/repository/{what}/{quote(name, safe='')}",
        read=lambda answer: commit_id(answer["commit"]["id"]),
    )


def find_head(repository: str, number: int) -> ForgeCall[ChangeRequestHead]:
    return ForgeCall(method="GET", path=f"{project_path(repository)}/merge_requests/{number}", read=_head)


def may_write(repository: str, account: ForgeAccount) -> ForgeCall[bool] | None:
    """Ask /api/members, which includes members of the groups above.

    30 is a developer, who may push to branches that are not protected.
    """
    if account.id is None:
        return None
    return ForgeCall(
        method="GET",
        path=f"{project_path(repository)}/members/all/{account.id}",
        already=is_missing,
        read=lambda member: member is not None and member["access_level"] >= DEVELOPER,
    )


def _head(request: Any) -> ChangeRequestHead:
    source, target = request["source_project_id"], request["target_project_id"]
    return ChangeRequestHead(
        commit_sha=commit_id(request["sha"]),
        is_fork=source is None or source != target,
        is_open=request["state"] == "opened",
        base_ref=name_in(request["target_branch"]),
        head_ref=name_in(request["source_branch"]),
    )
