"""Reads GitHub's re-runs of checks and its dispatches. Pure.

Source: docs.github.com/webhooks/webhook-events-and-payloads, `check_run`, `check_suite`, `workflow_dispatch`,
`repository_dispatch`. Check events with these actions reach only the App that made the check.
"""

from solstice_forge.forges.events import Dispatch, Event, Malformed, Rerun
from solstice_forge.forges.payloads import (
    AccountPayload,
    Number,
    Payload,
    RepositoryPayload,
    Sha,
    Text,
    names_a_ref,
    read,
)


class CheckedHead(Payload, frozen=True, kw_only=True):
    sha: str | None = None


class PullRequestRef(Payload, frozen=True, kw_only=True):
    number: Number
    head: CheckedHead | None = None


class CheckSuite(Payload, frozen=True, kw_only=True):
    head_sha: Sha
    head_branch: str | None = None
    """None for a fork's."""
    pull_requests: list[PullRequestRef] = []  # noqa: RUF012  msgspec copies it for each
    """Forks' pull requests are not listed."""


class SuiteOfRun(Payload, frozen=True, kw_only=True):
    head_branch: str | None = None


class CheckRun(Payload, frozen=True, kw_only=True):
    head_sha: Sha
    name: str | None = None
    check_suite: SuiteOfRun | None = None
    pull_requests: list[PullRequestRef] = []  # noqa: RUF012  msgspec copies it for each


class CheckRunPayload(Payload, frozen=True, kw_only=True):
    action: str
    check_run: CheckRun
    repository: RepositoryPayload
    sender: AccountPayload | None = None


class CheckSuitePayload(Payload, frozen=True, kw_only=True):
    action: str
    check_suite: CheckSuite
    repository: RepositoryPayload
    sender: AccountPayload | None = None


class WorkflowDispatchPayload(Payload, frozen=True, kw_only=True):
    ref: Text
    workflow: str | None = None
    repository: RepositoryPayload
    sender: AccountPayload | None = None


class RepositoryDispatchPayload(Payload, frozen=True, kw_only=True):
    action: Text
    branch: Text
    repository: RepositoryPayload
    sender: AccountPayload | None = None


def read_check_run(payload: bytes) -> Event | Malformed:
    """Read a request to run one check again."""
    parsed = read(CheckRunPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    run = parsed.check_run
    return Rerun(
        repo_full_name=parsed.repository.full_name,
        repo_url=parsed.repository.clone_url,
        commit_sha=run.head_sha,
        branch=run.check_suite.head_branch if run.check_suite else None,
        number=_number(run.pull_requests, run.head_sha),
        check=run.name,
        action=parsed.action,
        sender=_login(parsed.sender),
    )


def read_check_suite(payload: bytes) -> Event | Malformed:
    """Read a request to run all checks of a commit again."""
    parsed = read(CheckSuitePayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    suite = parsed.check_suite
    return Rerun(
        repo_full_name=parsed.repository.full_name,
        repo_url=parsed.repository.clone_url,
        commit_sha=suite.head_sha,
        branch=suite.head_branch,
        number=_number(suite.pull_requests, suite.head_sha),
        check=None,
        action=parsed.action,
        sender=_login(parsed.sender),
    )


def read_workflow_dispatch(payload: bytes) -> Event | Malformed:
    parsed = read(WorkflowDispatchPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    ref = parsed.ref if parsed.ref.startswith("refs/") else f"refs/heads/{parsed.ref}"
    return _dispatch(parsed.repository, ref, None, parsed.workflow, parsed.sender)


def read_repository_dispatch(payload: bytes) -> Event | Malformed:
    parsed = read(RepositoryDispatchPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    return _dispatch(parsed.repository, f"refs/heads/{parsed.branch}", parsed.action, None, parsed.sender)


def _dispatch(
    repository: RepositoryPayload,
    ref: str,
    action: str | None,
    workflow: str | None,
    sender: AccountPayload | None,
) -> Event | Malformed:
    if not names_a_ref(ref):
        return Malformed(detail="ref: git allows no branch or tag of that name")
    return Dispatch(
        repo_full_name=repository.full_name,
        repo_url=repository.clone_url,
        ref=ref,
        commit_sha=None,
        action=action,
        workflow_path=workflow,
        sender=_login(sender),
    )


def _number(pull_requests: list[PullRequestRef], sha: str) -> int | None:
    """Return the number of the pull request that has this commit as its head."""
    return next((each.number for each in pull_requests if each.head and each.head.sha == sha), None)


def _login(user: AccountPayload | None) -> str | None:
    return (user.login if user else None) or None
