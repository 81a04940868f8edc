"""GitLab's webhooks: gitlab.com and self-managed, project, group and system hooks.

Source: docs.gitlab.com/user/project/integrations/webhooks and .../webhook_events,
docs.gitlab.com/administration/system_hooks.
"""

from collections.abc import Sequence
from typing import Final

from solstice_common.messages import Source
from solstice_forge.forges import standard_webhooks
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.comments_and_releases import release_event, why_no_command, word_meant, words_in
from solstice_forge.forges.events import ChangeRequest, Command, Event, Ignored, IgnoreReason, Malformed
from solstice_forge.forges.payloads import (
    Number,
    Payload,
    Sha,
    Text,
    is_zero,
    known_commit,
    moment_of,
    push_event,
    read,
)
from solstice_forge.forges.protocol import Forged, Genuine, Headers, Unsupported
from solstice_forge.forges.signatures import check_present, equals_any, wire_bytes

SOURCE: Final = Source.GITLAB

TOKEN: Final = "x-gitlab-token"  # noqa: S105  a header's name
SYSTEM_HOOK: Final = "System Hook"
KINDS: Final = {
    "Push Hook": "push",
    "Tag Push Hook": "tag_push",
    "Merge Request Hook": "merge_request",
    "Note Hook": "note",
    "Confidential Note Hook": "note",
    "Release Hook": "release",
}
"""The body's names of the events that we read; a system hook names its kind only there."""


class Project(Payload, frozen=True, kw_only=True):
    path_with_namespace: Text
    git_http_url: Text


class PushedProject(Project, frozen=True, kw_only=True):
    default_branch: str | None = None


class NamedProject(Payload, frozen=True, kw_only=True):
    path_with_namespace: Text | None = None


class GitLabPushPayload(Payload, frozen=True, kw_only=True):
    ref: Text
    after: Sha
    before: str | None = None
    checkout_sha: Sha | None = None
    """The commit, also when `after` is an annotated tag; None when the ref was deleted."""
    project: PushedProject
    user_username: str | None = None


class GitLabUser(Payload, frozen=True, kw_only=True):
    id: int | None = None
    username: str | None = None


class GitLabCommit(Payload, frozen=True, kw_only=True):
    id: Sha


class MergeRequest(Payload, frozen=True, kw_only=True):
    iid: Number
    action: str
    source_branch: Text
    target_branch: Text
    source_project_id: int | None = None
    """None once the fork was deleted."""
    target_project_id: int
    source: Project | None = None
    last_commit: GitLabCommit | None = None
    draft: bool | None = None
    work_in_progress: bool | None = None
    """The name of `draft` before GitLab 15."""
    updated_at: str | None = None


class MergeRequestOfNote(Payload, frozen=True, kw_only=True):
    iid: Number
    author_id: int | None = None
    source_branch: Text | None = None
    target_branch: Text | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None
    source: Project | None = None
    last_commit: GitLabCommit | None = None


class Note(Payload, frozen=True, kw_only=True):
    id: Number
    author_id: int | None = None
    action: str | None = None
    created_at: str | None = None


class NotePayload(Payload, frozen=True, kw_only=True):
    project: Project
    object_attributes: Note
    merge_request: MergeRequestOfNote
    user: GitLabUser | None = None


class GitLabReleasePayload(Payload, frozen=True, kw_only=True):
    action: str
    tag: Text
    id: int | None = None
    created_at: str | None = None
    commit: GitLabCommit
    project: Project


class MergeRequestPayload(Payload, frozen=True, kw_only=True):
    project: Project
    object_attributes: MergeRequest
    user: GitLabUser | None = None


class GitLabAttributes(Payload, frozen=True, kw_only=True):
    action: str | None = None
    oldrev: str | None = None
    noteable_type: str | None = None
    note: str | None = None


class GitLabEnvelope(Payload, frozen=True, kw_only=True):
    """The fields that we read of an event that is not built at once."""

    object_kind: str | None = None
    event_name: str | None = None
    action: str | None = None
    project: NamedProject | None = None
    object_attributes: GitLabAttributes | None = None

    def ignored(self, reason: IgnoreReason, detail: str) -> Ignored:
        return Ignored(
            reason=reason,
            detail=detail,
            repo_full_name=None if self.project is None else self.project.path_with_namespace,
        )


def delivery_id(headers: Headers) -> str | None:
    """Return the signed id where there is a signature, else the idempotency key.

    The key stays the same over GitLab's retries (17.4).
    """
    signed = headers.get(standard_webhooks.ID) if standard_webhooks.SIGNATURE in headers else None
    return signed or headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid") or None


def event_name(headers: Headers) -> str | None:
    return headers.get("x-gitlab-event") or None


def unproven(headers: Headers, secrets: Sequence[str]) -> Forged | None:
    is_signed = standard_webhooks.SIGNATURE in headers
    signing, plain = _by_kind(secrets)
    name, live = (standard_webhooks.SIGNATURE, signing) if is_signed else (TOKEN, plain)
    return check_present(name, headers.get(name), live)


def verify(
    headers: Headers, body: bytes, secrets: Sequence[str], now: float
) -> Genuine | Forged | Unsupported:
    """Check the signature when there is one, else the secret token.

    A right token never makes up for a wrong signature: otherwise a sender who knows the token could leave the signature
    out. A secret that starts with `whsec_` is a signing token, every other one a secret token.
    """
    payload = payload_of(headers, body, form=False)
    if isinstance(payload, Unsupported):
        return payload
    signing, plain = _by_kind(secrets)
    if standard_webhooks.SIGNATURE in headers:
        problem = standard_webhooks.check(headers, body, signing, now)
    else:
        problem = _check_token(headers.get(TOKEN), plain)
    return problem or Genuine(payload=payload)


def _by_kind(secrets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the signing tokens and the secret tokens."""
    signing = [secret for secret in secrets if secret.startswith(standard_webhooks.TOKEN_PREFIX)]
    return signing, [secret for secret in secrets if secret not in signing]


def _check_token(token: str | None, secrets: Sequence[str]) -> Forged | None:
    if problem := check_present(TOKEN, token, secrets):
        return problem
    matches = equals_any(wire_bytes(token or ""), (secret.encode() for secret in secrets if secret))
    return None if matches else Forged(detail=f"{TOKEN} does not match")


def parse(event_name: str, payload: bytes) -> Event | Ignored | Malformed:
    if event_name in {"Push Hook", "Tag Push Hook"}:
        return _push(payload)
    envelope = read(GitLabEnvelope, payload)
    if isinstance(envelope, Malformed):
        return envelope
    kind_in_body = envelope.event_name or envelope.object_kind
    kind = kind_in_body if event_name == SYSTEM_HOOK else KINDS.get(event_name)
    return _of_kind(kind, envelope, payload) or envelope.ignored(
        IgnoreReason.NOT_A_CODE_EVENT, f"{kind or event_name} brings no new code"
    )


def _of_kind(
    kind: str | None, envelope: GitLabEnvelope, payload: bytes
) -> Event | Ignored | Malformed | None:
    match kind:
        case "push" | "tag_push":
            return _push(payload)
        case "merge_request":
            return _merge_request(envelope, payload)
        case "note":
            return _note(envelope, payload)
        case "release" if envelope.action == "create":
            return _release(payload)
        case _:
            return None


def _push(payload: bytes) -> Event | Ignored | Malformed:
    push = read(GitLabPushPayload, payload)
    if isinstance(push, Malformed):
        return push
    return push_event(
        repo_full_name=push.project.path_with_namespace,
        repo_url=push.project.git_http_url,
        ref=push.ref,
        commit_sha=None if is_zero(push.after) else push.checkout_sha,
        before=push.before,
        sender=push.user_username,
        default_branch=push.project.default_branch,
    )


def _merge_request(envelope: GitLabEnvelope, payload: bytes) -> ChangeRequest | Ignored | Malformed:
    attributes = envelope.object_attributes or GitLabAttributes()
    action = attributes.action
    # An update that names no previous revision changed a title, a label or a reviewer.
    if not (action in {"open", "reopen"} or (action == "update" and attributes.oldrev)):
        return envelope.ignored(IgnoreReason.NO_NEW_CODE, f"merge request, {action}: no new code")
    parsed = read(MergeRequestPayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    request = parsed.object_attributes
    if request.last_commit is None:
        return envelope.ignored(IgnoreReason.NO_NEW_CODE, "the merge request has no commit yet")
    return ChangeRequest(
        repo_full_name=parsed.project.path_with_namespace,
        repo_url=parsed.project.git_http_url,
        number=request.iid,
        action=request.action,
        ref=f"refs/merge-requests/{request.iid}/head",
        commit_sha=request.last_commit.id,
        base_ref=request.target_branch,
        head_ref=request.source_branch,
        is_fork=request.source_project_id != request.target_project_id,
        head_repo_full_name=request.source.path_with_namespace if request.source else None,
        head_repo_url=request.source.git_http_url if request.source else None,
        draft=request.work_in_progress if request.draft is None else request.draft,
        sender=(parsed.user.username if parsed.user else None) or None,
        before_sha=known_commit(attributes.oldrev),
        occurred_at=moment_of(request.updated_at),
    )


def _note(envelope: GitLabEnvelope, payload: bytes) -> Event | Ignored | Malformed:
    note = envelope.object_attributes or GitLabAttributes()
    # GitLab named no action before 16.11; editing a note sent nothing then.
    is_remark = note.action in {None, "create"} and note.noteable_type == "MergeRequest"
    words = words_in(note.note) if is_remark else frozenset()
    word = word_meant(words)
    if word is None:
        return envelope.ignored(*why_no_command("merge request"))
    parsed = read(NotePayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    request, author = parsed.merge_request, parsed.object_attributes.author_id
    is_fork = _is_fork(request)
    return Command(
        word=word,
        repo_full_name=parsed.project.path_with_namespace,
        repo_url=parsed.project.git_http_url,
        number=request.iid,
        ref=f"refs/merge-requests/{request.iid}/head",
        action=parsed.object_attributes.action,
        commit_sha=request.last_commit.id if request.last_commit else None,
        is_fork=is_fork,
        base_ref=request.target_branch,
        head_ref=request.source_branch,
        head_repo_url=request.source.git_http_url if is_fork and request.source else None,
        asked=str(parsed.object_attributes.id),
        by_author=author is not None and author == request.author_id,
        sender=(parsed.user.username if parsed.user else None) or None,
        sender_id=author or (parsed.user.id if parsed.user else None),
        occurred_at=moment_of(parsed.object_attributes.created_at),
    )


def _is_fork(request: MergeRequestOfNote) -> bool | None:
    if request.target_project_id is None or request.source_project_id is None:
        return None
    return request.source_project_id != request.target_project_id


def _release(payload: bytes) -> Event | Malformed:
    parsed = read(GitLabReleasePayload, payload)
    if isinstance(parsed, Malformed):
        return parsed
    return release_event(
        repo_full_name=parsed.project.path_with_namespace,
        repo_url=parsed.project.git_http_url,
        tag=parsed.tag,
        commit_sha=parsed.commit.id,
        action=parsed.action,
        asked=f"{parsed.id or ''} {parsed.created_at or ''}",
        sender=None,
    )
