"""The webhooks of github.com and GitHub Enterprise Server.

Source: docs.github.com/webhooks/webhook-events-and-payloads and .../validating-webhook-deliveries.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from solstice_common.messages import Source
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.comments_and_releases import comment, read_release
from solstice_forge.forges.events import ChangeRequest, Event, Ignored, IgnoreReason, Malformed
from solstice_forge.forges.github_requests import (
    read_check_run,
    read_check_suite,
    read_repository_dispatch,
    read_workflow_dispatch,
)
from solstice_forge.forges.payloads import (
    WITHOUT_CODE,
    AccountPayload,
    EventEnvelope,
    Number,
    Payload,
    RepositoryPayload,
    Sha,
    Text,
    known_commit,
    moment_of,
    push_event,
    read,
    read_push,
)
from solstice_forge.forges.protocol import Forged, Genuine, Headers, Unsupported
from solstice_forge.forges.signatures import check_hex_digest, check_present

SOURCE: Final = Source.GITHUB

SIGNATURE: Final = "x-hub-signature-256"
BUILD_ACTIONS: Final = frozenset({"opened", "reopened", "synchronize"})


class PullRequestHead(Payload, frozen=True, kw_only=True):
    ref: Text
    sha: Sha
    repo: RepositoryPayload | None = None
    """None once the fork was deleted."""


class PullRequestBase(Payload, frozen=True, kw_only=True):
    ref: Text
    repo: RepositoryPayload


class GitHubPullRequest(Payload, frozen=True, kw_only=True):
    head: PullRequestHead
    base: PullRequestBase
    draft: bool | None = None
    updated_at: str | None = None


class GitHubPullRequestPayload(Payload, frozen=True, kw_only=True):
    action: str
    number: Number
    pull_request: GitHubPullRequest
    before: str | None = None
    """The previous head, in `synchronize`."""
    sender: AccountPayload | None = None


class MergeGroup(Payload, frozen=True, kw_only=True):
    head_sha: Sha
    head_ref: Text
    base_sha: Sha


class MergeGroupPayload(Payload, frozen=True, kw_only=True):
    merge_group: MergeGroup
    repository: RepositoryPayload
    sender: AccountPayload | None = None


def delivery_id(headers: Headers) -> str | None:
    return headers.get("x-github-delivery") or None


def event_name(headers: Headers) -> str | None:
    return headers.get("x-github-event") or None


def unproven(headers: Headers, secrets: Sequence[str]) -> Forged | None:
    return check_present(SIGNATURE, headers.get(SIGNATURE), secrets)


def verify(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,  # noqa: ARG001  the same shape as every forge; GitHub signs no time
) -> Genuine | Forged | Unsupported:
    """Check the signature over the raw body, which may be a form.

    The older SHA-1 signature is ignored.
    """
    payload = payload_of(headers, body)
    if isinstance(payload, Unsupported):
        return payload
    problem = check_hex_digest(
        SIGNATURE, headers.get(SIGNATURE), prefix="sha256=", signed=body, secrets=secrets
    )
    return problem or Genuine(payload=payload)


def parse(event_name: str, payload: bytes) -> Event | Ignored | Malformed:
    if event_name == "push":
        return read_push(payload)
    envelope = read(EventEnvelope, payload)
    if isinstance(envelope, Malformed):
        return envelope
    if event_name == "pull_request" and envelope.action in BUILD_ACTIONS:
        return _pull_request(payload)
    if event_name == "issue_comment":
        return comment(envelope, payload)
    reader = READERS.get((event_name, envelope.action)) or READERS.get((event_name, None))
    return reader(payload) if reader else envelope.ignored(*_why_not(event_name, envelope))


def _pull_request(payload: bytes) -> ChangeRequest | Malformed:
    parsed = read(GitHubPullRequestPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    head, base = parsed.pull_request.head, parsed.pull_request.base
    return ChangeRequest(
        repo_full_name=base.repo.full_name,
        repo_url=base.repo.clone_url,
        number=parsed.number,
        action=parsed.action,
        ref=f"refs/pull/{parsed.number}/head",
        commit_sha=head.sha,
        base_ref=base.ref,
        head_ref=head.ref,
        is_fork=head.repo is None or head.repo.full_name != base.repo.full_name,
        head_repo_full_name=head.repo.full_name if head.repo else None,
        head_repo_url=head.repo.clone_url if head.repo else None,
        draft=parsed.pull_request.draft,
        occurred_at=moment_of(parsed.pull_request.updated_at),
        sender=(parsed.sender.login if parsed.sender else None) or None,
        before_sha=known_commit(parsed.before),
    )


def _merge_group(payload: bytes) -> Event | Ignored | Malformed:
    """Read a merge queue's branch as a push to it.

    The push event of that branch gives the same run.
    """
    parsed = read(MergeGroupPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    return push_event(
        repo_full_name=parsed.repository.full_name,
        repo_url=parsed.repository.clone_url,
        ref=parsed.merge_group.head_ref,
        commit_sha=parsed.merge_group.head_sha,
        before=parsed.merge_group.base_sha,
        sender=parsed.sender.login if parsed.sender else None,
        default_branch=None,
    )


def _why_not(event_name: str, envelope: EventEnvelope) -> tuple[IgnoreReason, str]:
    match event_name, envelope.action:
        case (("create" | "delete" | "ping"), _):
            return WITHOUT_CODE[event_name]
        case (("pull_request" | "pull_request_review" | "pull_request_review_comment"), action):
            return IgnoreReason.NO_NEW_CODE, f"{event_name} {action}: no new code"
        case _:
            return IgnoreReason.NOT_A_CODE_EVENT, f"{event_name} brings no new code"


READERS: Final[Mapping[tuple[str, str | None], Callable[[bytes], Event | Ignored | Malformed]]] = (
    MappingProxyType(
        {
            ("merge_group", "checks_requested"): _merge_group,
            ("check_run", "rerequested"): read_check_run,
            ("check_suite", "rerequested"): read_check_suite,
            ("release", "published"): read_release,
            ("workflow_dispatch", None): read_workflow_dispatch,
            ("repository_dispatch", None): read_repository_dispatch,
        }
    )
)
"""The readers of other events that ask for something, by event and action; None for any action."""
