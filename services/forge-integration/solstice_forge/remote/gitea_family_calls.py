"""Calls of Gitea's API, which Forgejo shares: statuses, and what deliveries lack. Pure.

Source: routers/api/v1/repo/status.go, branch.go, tag.go, pull.go, collaborators.go, modules/structs/status.go and
modules/commitstatus of both projects. Their database stores context and description as text without a limit; the pages
show one line of it.
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

PACE: Final = CallPace(interval_seconds=0.05, burst=20, at_once=4)
"""They have no known limit; a small server on one disk can bear this beside its users."""
CHECKS: Final[CheckCalls | None] = None
DESCRIPTION_CHARACTERS: Final = 255
CONTEXT_CHARACTERS: Final = 255
LINK_CHARACTERS: Final = 2048

_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobState.SUCCEEDED: "success",
        JobState.FAILED: "failure",
        JobState.TIMED_OUT: "failure",
        JobState.CANCELLED: "failure",
        JobState.ERRORED: "error",
    }
)
"""Every other state is pending. A skipped job becomes `success` with its reason: older versions know no `skipped`."""


def api_url(url: str) -> str:
    return f"{url.rstrip('/')}/api/v1"


def headers(token: str) -> Mapping[str, str]:
    return {"accept": "application/json", "authorization": f"token {token}"}


def repository_path(repository: str) -> str:
    """Return the path of a repository, with `owner/name` encoded."""
    return f"/repos/{quote(repository, safe='/')}"


def set_status(status: CommitStatus) -> ForgeCall[None]:
    body: dict[str, object] = {
        "context": shortened(status.context, CONTEXT_CHARACTERS),
        "state": "success" if status.state == JobState.SKIPPED else _STATES.get(status.state, "pending"),
        "description": shortened(status.description, DESCRIPTION_CHARACTERS),
    }
    if target := link(status.target_url, LINK_CHARACTERS):
        body["target_url"] = target
    return ForgeCall(
        method="POST",
        path=f"{repository_path(status.repository)}/statuses/{status.commit_sha}",
        body=body,
        unread=True,
        read=nothing,
    )


def find_commit(repository: str, ref: str) -> ForgeCall[str]:
    """Find the commit of a branch or tag; the route takes slashes in names.

    A tag's `commit` is the commit it leads to, its `id` the tag object.
    """
    kind, name = ref.removeprefix("refs/").split("/", 1)
    is_tag = kind == "tags"
    return ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/{'tags' if is_tag else 'branches'}/{quote(name, safe='/')}",
        read=lambda answer: commit_id(answer["commit"]["sha" if is_tag else "id"]),
    )


def find_head(repository: str, number: int) -> ForgeCall[ChangeRequestHead]:
    return ForgeCall(method="GET", path=f"{repository_path(repository)}/pulls/{number}", read=_head)


def may_write(repository: str, account: ForgeAccount) -> ForgeCall[bool] | None:
    """Ask GetRepoPermissions, which only administrators of the repository may ask about others."""
    if account.login is None:
        return None
    return ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/collaborators/{quote(account.login, safe='')}/permission",
        already=is_missing,
        read=lambda answer: answer is not None and answer["permission"] in {"owner", "admin", "write"},
    )


def _head(pull: Any) -> ChangeRequestHead:
    head, base = pull["head"], pull["base"]
    origin = head.get("repo")
    is_fork = _is_fork(head, base)
    return ChangeRequestHead(
        commit_sha=commit_id(head["sha"]),
        is_fork=is_fork,
        is_open=pull["state"] == "open",
        base_ref=name_in(base["ref"]),
        head_ref=name_in(head["ref"]),
        head_repo_url=name_in(origin["clone_url"]) if is_fork and origin is not None else None,
    )


def _is_fork(head: Any, base: Any) -> bool | None:
    """Whether the head is a fork's; None for a push to `refs/for/...` (AGit).

    Such a change names the base repository as its head, for every author.
    """
    if head.get("repo") is None or head["repo_id"] is None or head["repo_id"] != base["repo_id"]:
        return True
    return None if head["ref"].startswith("refs/") else False
