"""Calls of GitHub's API: commit statuses and checks, and what a delivery lacks. Pure.

Source: docs.github.com/rest/commits/statuses (1,000 statuses for a commit and context), /rest/checks/runs,
/rest/using-the-rest-api/rate-limits-for-the-rest-api, /apps/creating-github-apps/authenticating-with-a-github-app. Its
pages do not say that a description has at most 140 characters, none of them of four bytes ("doesn't accept 4-byte
Unicode", 422).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlsplit

from solstice_common.messages.states import JobState
from solstice_forge.remote.check_texts import annotations, check_summary
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

PACE: Final = CallPace(interval_seconds=0.8, burst=40, at_once=4)
"""900 points a minute at 5 for a write are 180 calls: this is 115 in the busiest minute, 75 in later ones."""
API_VERSION: Final = "2022-11-28"
DESCRIPTION_CHARACTERS: Final = 140
CONTEXT_CHARACTERS: Final = 255
LINK_CHARACTERS: Final = 1024
TITLE_CHARACTERS: Final = 255

_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobState.SUCCEEDED: "success",
        JobState.SKIPPED: "success",
        JobState.FAILED: "failure",
        JobState.TIMED_OUT: "failure",
        JobState.ERRORED: "error",
        JobState.CANCELLED: "error",
    }
)
"""Every other state is pending."""


def api_url(url: str) -> str:
    """Return the API's URL: a separate host for github.com, a path for an Enterprise Server."""
    base = url.rstrip("/")
    host = urlsplit(base).hostname or ""
    if host in {"github.com", "www.github.com", "api.github.com"}:
        return "https://api.github.com"
    if host.endswith(".ghe.com"):
        return base if host.startswith("api.") else base.replace("://", "://api.", 1)
    return f"{base}/api/v3"


def headers(token: str) -> Mapping[str, str]:
    return {
        "accept": "application/vnd.github+json",
        "authorization": f"Bearer {token}",
        "x-github-api-version": API_VERSION,
    }


def repository_path(repository: str) -> str:
    """Return the path of a repository, with `owner/name` encoded."""
    return f"/repos/{quote(repository, safe='/')}"


def set_status(status: CommitStatus) -> ForgeCall[None]:
    body: dict[str, object] = {
        "context": shortened(status.context, CONTEXT_CHARACTERS, astral=False),
        "state": _STATES.get(status.state, "pending"),
        "description": shortened(status.description, DESCRIPTION_CHARACTERS, astral=False),
    }
    if target := link(status.target_url, LINK_CHARACTERS):
        body["target_url"] = target
    return ForgeCall(
        method="POST",
        path=f"{repository_path(status.repository)}/statuses/{status.commit_sha}",
        body=body,
        repository=status.repository,
        permissions=MappingProxyType({"statuses": "write"}),
        unread=True,
        read=nothing,
    )


def find_commit(repository: str, ref: str) -> ForgeCall[str]:
    return ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/commits/{quote(ref.removeprefix('refs/'), safe='/')}",
        repository=repository,
        permissions=MappingProxyType({"contents": "read"}),
        read=lambda commit: commit_id(commit["sha"]),
    )


def find_head(repository: str, number: int) -> ForgeCall[ChangeRequestHead]:
    return ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/pulls/{number}",
        repository=repository,
        permissions=MappingProxyType({"pull_requests": "read"}),
        read=_head,
    )


def is_on_branch(repository: str, sha: str, branch: str) -> ForgeCall[bool]:
    """Ask whether the repository's own branch holds the commit (/rest/commits#compare-two-commits)."""
    return ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/compare/{sha}...{quote(branch, safe='/')}",
        query=MappingProxyType({"per_page": "1"}),
        repository=repository,
        permissions=MappingProxyType({"contents": "read"}),
        already=is_missing,
        read=lambda compared: compared is not None and compared["status"] in {"ahead", "identical"},
    )


def may_write(repository: str, account: ForgeAccount) -> ForgeCall[bool] | None:
    """Ask /rest/collaborators: its `permission` gives `maintain` as `write`, `triage` as `read`."""
    if account.login is None:
        return None
    return ForgeCall(
        method="GET",
        path=f"{repository_path(repository)}/collaborators/{quote(account.login, safe='')}/permission",
        repository=repository,
        permissions=MappingProxyType({"metadata": "read"}),
        already=is_missing,
        read=lambda answer: answer is not None and answer["permission"] in {"admin", "write"},
    )


def _head(pull: Any) -> ChangeRequestHead:
    head, base = pull["head"], pull["base"]
    origin = head["repo"]
    is_fork = origin is None or name_in(origin["full_name"]) != base["repo"]["full_name"]
    return ChangeRequestHead(
        commit_sha=commit_id(head["sha"]),
        is_fork=is_fork,
        is_open=pull["state"] == "open",
        base_ref=name_in(base["ref"]),
        head_ref=name_in(head["ref"]),
        head_repo_url=name_in(origin["clone_url"]) if is_fork and origin is not None else None,
    )


_CONCLUSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobState.SUCCEEDED: "success",
        JobState.SKIPPED: "skipped",
        JobState.FAILED: "failure",
        JobState.TIMED_OUT: "timed_out",
        JobState.ERRORED: "failure",
        JobState.CANCELLED: "cancelled",
    }
)
"""Every other state is not completed."""


def set_check(status: CommitStatus, check_id: int | None) -> ForgeCall[int]:
    """Make or update a check run, and return its id; only for Apps.

    It is a new one unless `check_id` is given.
    """
    conclusion = _CONCLUSIONS.get(status.state)
    title = shortened(status.description, TITLE_CHARACTERS, astral=False)
    output: dict[str, object] = {"title": title, "summary": title}
    if status.tests is not None:
        output["summary"] = check_summary(title, status.tests)
        if conclusion is not None and (found := annotations(status.tests)):
            output["annotations"] = found
    body: dict[str, object] = {
        "name": shortened(status.context, CONTEXT_CHARACTERS, astral=False),
        "external_id": status.external_id,
        "output": output,
    }
    if conclusion is not None:
        body |= {"status": "completed", "conclusion": conclusion, "completed_at": status.occurred_at}
    elif status.state == JobState.RUNNING:
        body |= {"status": "in_progress", "started_at": status.occurred_at}
    else:
        body["status"] = "queued"
    if target := link(status.target_url, LINK_CHARACTERS):
        body["details_url"] = target
    path = f"{repository_path(status.repository)}/check-runs"
    if check_id is None:
        body["head_sha"] = status.commit_sha
    return ForgeCall(
        method="POST" if check_id is None else "PATCH",
        path=path if check_id is None else f"{path}/{check_id}",
        body=body,
        repository=status.repository,
        permissions=MappingProxyType({"checks": "write"}),
        read=lambda document: int(document["id"]),
    )


def forbids_checks(status: int, detail: str) -> bool:
    """Whether a refusal means that the App has no right to check runs.

    Commit statuses are used then.
    """
    return status in {403, 422} and any(
        word in detail for word in ("permission", "not accessible by integration")
    )


CHECKS: Final[CheckCalls | None] = CheckCalls(set_check=set_check, forbids_checks=forbids_checks)
