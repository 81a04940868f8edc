"""GitHub: github.com and GitHub Enterprise Server.

Source: docs.github.com/webhooks/webhook-events-and-payloads and .../validating-webhook-deliveries.
"""

from collections.abc import Sequence
from typing import Final

from solstice_common.messages import Source
from solstice_forge.events import ChangeRequest, Event, Ignored, IgnoreReason, Malformed
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.payloads import (
    WITHOUT_CODE,
    Envelope,
    Number,
    Payload,
    Repository,
    Sha,
    Text,
    User,
    push_event,
    read,
    read_push,
)
from solstice_forge.forges.protocol import Forged, Genuine, Headers, Unsupported
from solstice_forge.forges.signatures import check_hex_digest

SOURCE: Final = Source.GITHUB

SIGNATURE: Final = "x-hub-signature-256"
BUILD_ACTIONS: Final = frozenset({"opened", "reopened", "synchronize"})


class Head(Payload):
    ref: Text
    sha: Sha
    repo: Repository | None = None
    """None once the fork was deleted."""


class Base(Payload):
    ref: Text
    repo: Repository


class PullRequest(Payload):
    head: Head
    base: Base
    draft: bool | None = None


class PullRequestPayload(Payload):
    action: str
    number: Number
    pull_request: PullRequest
    sender: User | None = None


class MergeGroup(Payload):
    head_sha: Sha
    head_ref: Text
    base_sha: Sha


class MergeGroupPayload(Payload):
    merge_group: MergeGroup
    repository: Repository
    sender: User | None = None


def delivery_id(headers: Headers) -> str | None:
    return headers.get("x-github-delivery") or None


def event_name(headers: Headers) -> str | None:
    return headers.get("x-github-event") or None


def verify(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,  # noqa: ARG001  the same shape as every forge; GitHub signs no time
) -> Genuine | Forged | Unsupported:
    """Signed over the body as it came, also when that is a form. The older SHA-1 signature counts for nothing."""
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
    envelope = read(Envelope, payload)
    if isinstance(envelope, Malformed):
        return envelope
    if event_name == "pull_request" and envelope.action in BUILD_ACTIONS:
        return _pull_request(payload)
    if event_name == "merge_group" and envelope.action == "checks_requested":
        return _merge_group(payload)
    return envelope.ignored(*_why_not(event_name, envelope))


def _pull_request(payload: bytes) -> ChangeRequest | Malformed:
    given = read(PullRequestPayload, payload)
    if isinstance(given, Malformed):
        return given
    head, base = given.pull_request.head, given.pull_request.base
    return ChangeRequest(
        repo_full_name=base.repo.full_name,
        repo_url=base.repo.clone_url,
        number=given.number,
        action=given.action,
        ref=f"refs/pull/{given.number}/head",
        commit_sha=head.sha,
        base_ref=base.ref,
        head_ref=head.ref,
        is_fork=head.repo is None or head.repo.full_name != base.repo.full_name,
        head_repo_full_name=head.repo.full_name if head.repo else None,
        head_repo_url=head.repo.clone_url if head.repo else None,
        draft=given.pull_request.draft,
        sender=(given.sender.login if given.sender else None) or None,
    )


def _merge_group(payload: bytes) -> Event | Ignored | Malformed:
    """The merge queue made a branch of its own: a push to it, and the push event of that branch is the same run."""
    given = read(MergeGroupPayload, payload)
    if isinstance(given, Malformed):
        return given
    return push_event(
        repo_full_name=given.repository.full_name,
        repo_url=given.repository.clone_url,
        ref=given.merge_group.head_ref,
        commit_sha=given.merge_group.head_sha,
        before=given.merge_group.base_sha,
        sender=given.sender.login if given.sender else None,
    )


def _why_not(event_name: str, envelope: Envelope) -> tuple[IgnoreReason, str]:
    match event_name, envelope.action:
        case (("create" | "delete" | "ping"), _):
            return WITHOUT_CODE[event_name]
        case (("pull_request" | "pull_request_review" | "pull_request_review_comment"), action):
            return IgnoreReason.NO_NEW_CODE, f"{event_name} {action}: no new code"
        case "issue_comment", _ if not envelope.is_command:
            return IgnoreReason.NO_COMMAND, "no new comment with a command on a pull request"
        case (
            (("check_run" | "check_suite"), "rerequested")
            | ("release", "published")
            | (("issue_comment" | "workflow_dispatch" | "repository_dispatch"), _)
        ):
            return IgnoreReason.NOT_SUPPORTED_YET, f"{event_name} is not acted on yet"
        case _:
            return IgnoreReason.NOT_A_CODE_EVENT, f"{event_name} brings no new code"
