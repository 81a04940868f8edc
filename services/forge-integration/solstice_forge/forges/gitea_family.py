"""The webhooks of Gitea and Forgejo, which differ only in their header names. Pure.

Source: go-gitea/gitea services/webhook/deliver.go, modules/structs/hook.go, services/convert/pull.go;
forgejo.org/docs/latest/user/webhooks.
"""

from collections.abc import Sequence
from typing import Final

from solstice_common.messages import Source
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.comments_and_releases import comment, read_release
from solstice_forge.forges.events import ChangeRequest, Event, Ignored, IgnoreReason, Malformed
from solstice_forge.forges.payloads import (
    WITHOUT_CODE,
    AccountPayload,
    EventEnvelope,
    Number,
    Payload,
    RepositoryPayload,
    Sha,
    Text,
    moment_of,
    read,
    read_push,
)
from solstice_forge.forges.protocol import Forged, Genuine, Headers, Unsupported
from solstice_forge.forges.signatures import check_hex_digest, check_present

# Gitea says `synchronized`; GitHub's word is accepted beside it, since the payload imitates GitHub's.
BUILD_ACTIONS: Final = frozenset({"opened", "reopened", "synchronized", "synchronize"})


class PullRequestSide(Payload, frozen=True, kw_only=True):
    ref: Text
    sha: Sha
    repo_id: int | None = None
    repo: RepositoryPayload | None = None


class GiteaPullRequest(Payload, frozen=True, kw_only=True):
    head: PullRequestSide
    base: PullRequestSide
    draft: bool | None = None
    updated_at: str | None = None


class GiteaPullRequestPayload(Payload, frozen=True, kw_only=True):
    action: str
    number: Number
    pull_request: GiteaPullRequest
    repository: RepositoryPayload
    sender: AccountPayload | None = None


class GiteaFamily:
    """See `protocol.Forge`; the names of its headers begin with the forge's own."""

    def __init__(self, source: Source) -> None:
        self.SOURCE: Final = source
        self._delivery_header = f"x-{source.value}-delivery"
        self._event_header = f"x-{source.value}-event"
        self._signature_header = f"x-{source.value}-signature"

    def delivery_id(self, headers: Headers) -> str | None:
        return headers.get(self._delivery_header) or None

    def event_name(self, headers: Headers) -> str | None:
        return headers.get(self._event_header) or None

    def unproven(self, headers: Headers, secrets: Sequence[str]) -> Forged | None:
        return check_present(self._signature_header, headers.get(self._signature_header), secrets)

    def verify(
        self,
        headers: Headers,
        body: bytes,
        secrets: Sequence[str],
        now: float,  # noqa: ARG002  the same shape as every forge; these sign no time
    ) -> Genuine | Forged | Unsupported:
        """Check the signature over the JSON text.

        A form is decoded before, since its own bytes are not signed.
        """
        payload = payload_of(headers, body)
        if isinstance(payload, Unsupported):
            return payload
        header = self._signature_header
        problem = check_hex_digest(header, headers.get(header), prefix="", signed=payload, secrets=secrets)
        return problem or Genuine(payload=payload)

    def parse(self, event_name: str, payload: bytes) -> Event | Ignored | Malformed:
        return parse(event_name, payload)


FORGEJO: Final = GiteaFamily(Source.FORGEJO)
GITEA: Final = GiteaFamily(Source.GITEA)


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
    if (event_name, envelope.action) == ("release", "published"):
        return read_release(payload)
    return envelope.ignored(*_why_not(event_name, envelope))


def _pull_request(payload: bytes) -> ChangeRequest | Malformed:
    parsed = read(GiteaPullRequestPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    head, base = parsed.pull_request.head, parsed.pull_request.base
    return ChangeRequest(
        repo_full_name=parsed.repository.full_name,
        repo_url=parsed.repository.clone_url,
        number=parsed.number,
        action=parsed.action,
        ref=f"refs/pull/{parsed.number}/head",
        commit_sha=head.sha,
        base_ref=base.ref,
        head_ref=head.ref,
        is_fork=_is_fork(head, base),
        head_repo_full_name=head.repo.full_name if head.repo else None,
        head_repo_url=head.repo.clone_url if head.repo else None,
        draft=parsed.pull_request.draft,
        occurred_at=moment_of(parsed.pull_request.updated_at),
        sender=(parsed.sender.login if parsed.sender else None) or None,
    )


def _is_fork(head: PullRequestSide, base: PullRequestSide) -> bool | None:
    """Whether the change request comes from a fork; None when the payload does not say.

    The author of a change request made by pushing to `refs/for/...` (AGit) may have only read access, and yet it names
    the base repository as its head; its head ref is `refs/pull/N/head` instead of a branch.
    """
    if head.repo is not None and base.repo is not None and head.repo.full_name != base.repo.full_name:
        return True
    if head.repo_id is not None and base.repo_id is not None and head.repo_id != base.repo_id:
        return True
    known = head.repo is not None and base.repo is not None
    known = known or (head.repo_id is not None and base.repo_id is not None)
    return False if known and not head.ref.startswith("refs/") else None


def _why_not(event_name: str, envelope: EventEnvelope) -> tuple[IgnoreReason, str]:
    if event_name in WITHOUT_CODE:
        return WITHOUT_CODE[event_name]
    # Reviews are events of their own: pull_request_approved, pull_request_rejected, pull_request_comment.
    if event_name.startswith("pull_request"):
        return IgnoreReason.NO_NEW_CODE, f"{event_name} {envelope.action}: no new code"
    return IgnoreReason.NOT_A_CODE_EVENT, f"{event_name} brings no new code"
