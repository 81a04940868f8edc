"""Lists branch heads and open pull requests of Gitea and Forgejo. Pure.

These forges report nothing of their deliveries, so heads are compared instead.
Source: routers/api/v1/repo/{repo,branch,pull}.go, services/convert/{convert,pull}.go of both projects; a page has at
most 50 (`[api] MAX_RESPONSE_ITEMS`), and the Link header names the next one.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from solstice_common.messages.fields import MAX_INTEGER
from solstice_forge.remote.gitea_family_calls import repository_path
from solstice_forge.remote.protocol import (
    ForgeCall,
    Page,
    Unreadable,
    commit_id,
    name_in,
    nothing,
    paged,
)

PER_PAGE: Final = "50"
_GONE: Final = -1
"""The number of a head's repository that was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiteaRepository:
    """A repository as a webhook would describe it."""

    full_name: str
    clone_url: str
    default_branch: str | None
    has_changes: bool
    """Whether pull requests are switched on; without them there is no list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiteaBranch:
    """A branch and the commit it points at."""

    name: str
    commit_sha: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChange:
    """An open pull request; `document` is the part of a webhook's payload that we read."""

    number: int
    commit_sha: str
    document: dict[str, Any]


def find_repository(repository: str) -> ForgeCall[GiteaRepository]:
    return ForgeCall(method="GET", path=repository_path(repository), read=_repository)


def find_branches(repository: str) -> ForgeCall[Page[GiteaBranch]]:
    call: ForgeCall[None] = ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/branches",
        query=MappingProxyType({"limit": PER_PAGE}),
        read=nothing,
    )
    return paged(call, _branch)


def find_changes(repository: str) -> ForgeCall[Page[OpenChange]]:
    """List open changes, newest first.

    So a change that is opened meanwhile moves no other one off the next page unseen.
    """
    call: ForgeCall[None] = ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/pulls",
        query=MappingProxyType({"state": "open", "limit": PER_PAGE}),
        read=nothing,
    )
    return paged(call, _change)


def _repository(document: Any) -> GiteaRepository:
    return GiteaRepository(
        full_name=name_in(document["full_name"]),
        clone_url=name_in(document["clone_url"]),
        default_branch=None if document.get("default_branch") is None else str(document["default_branch"]),
        has_changes=document.get("has_pull_requests") is not False,
    )


def _branch(document: Any) -> GiteaBranch:
    commit = document["commit"]
    return GiteaBranch(
        name=name_in(document["name"]),
        commit_sha=commit_id(commit["id"]),
        message=str(commit.get("message") or ""),
    )


def _change(document: Any) -> OpenChange:
    moment, draft = document.get("updated_at"), document.get("draft")
    return OpenChange(
        number=_number(document["number"], least=1),
        commit_sha=commit_id(document["head"]["sha"]),
        document={
            "draft": draft if isinstance(draft, bool) else None,
            "updated_at": moment if isinstance(moment, str) else None,
            "head": _side(document["head"]),
            "base": _side(document["base"]),
        },
    )


def _side(document: Any) -> dict[str, Any]:
    origin, number = document.get("repo"), document.get("repo_id")
    return {
        "ref": name_in(document["ref"]),
        "sha": commit_id(document["sha"]),
        "repo_id": None if number is None else _number(number, least=_GONE),
        "repo": None
        if origin is None
        else {"full_name": name_in(origin["full_name"]), "clone_url": name_in(origin["clone_url"])},
    }


def _number(value: object, *, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_INTEGER:
        raise Unreadable("no number")
    return value
