"""Builds the request or cancellation that an event asks for, with stable keys. Pure.

Its id is the same for a delivery that comes again; its content key is the same for every delivery of one event.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import orjson
from pydantic import ValidationError

from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobCancelV1, JobRequestV1, derive_request_id
from solstice_common.tracing.request_trace import message_traceparent
from solstice_common.values.repo_urls import spelled
from solstice_common.values.times import format_seconds
from solstice_common.values.value import Value
from solstice_forge.decisions.rules import BUILT, Ruling
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.forges.events import (
    ChangeRequest,
    Command,
    CommandKind,
    Dispatch,
    Event,
    Malformed,
    Push,
    Release,
    Rerun,
)

PUSH: Final = "push"
CHANGE_REQUEST: Final = "change_request"
CANCEL: Final = "cancel"
CHECKS: Final = "solstice/"
"""How the name of a job's check begins."""
LATE_SECONDS: Final = 10.0
"""A delivery that arrives later than this after its event was delayed on its way."""
WORKFLOWS: Final = ".solstice/"
"""Where our workflows are; a dispatch may also name one of the forge's own."""
_KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {
        Push: PUSH,
        ChangeRequest: CHANGE_REQUEST,
        Command: "comment",
        Rerun: "rerun",
        Release: "release",
        Dispatch: "dispatch",
    }
)


class PlannedRun(Value, frozen=True, kw_only=True):
    """An event asks for a run; `body` is the canonical bytes of `request`."""

    request: JobRequestV1
    body: bytes

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.request.request_id

    @property
    def key(self) -> str | None:
        """The idempotency key, equal for every delivery of one event."""
        return self.request.idempotency_key


class PlannedCancel(Value, frozen=True, kw_only=True):
    """An event asks to end a change request's runs.

    `body` is the canonical bytes of `cancel`.
    """

    cancel: JobCancelV1
    body: bytes

    @property
    def id(self) -> str:
        """As PlannedRun.id."""
        return self.cancel.cancel_id

    @property
    def key(self) -> str | None:
        """As PlannedRun.key."""
        return self.cancel.idempotency_key


def build_request(
    event: Event,
    *,
    source: WebhookSource,
    delivery_id: str,
    received_at: float,
    traceparent: str | None,
    ruling: Ruling = BUILT,
    key: str | None = None,
) -> PlannedRun | PlannedCancel | Malformed:
    """Return the request for an event as the ruling says, or the cancellation for `/cancel`.

    The same delivery gives the same request id; two hooks that see one event give the same idempotency key. A push, a
    release and a dispatch are trusted, since they need write access. A change request is trusted only when it is known
    to come from the same repository. What the event lacks must have been looked up before. `key` replaces the content
    key when a person asks for the same request again. Malformed: the message's schema refuses a value of the payload,
    such as an odd `repo_url`.
    """
    own_id = derive_request_id(source.name, delivery_id)
    fields: dict[str, object] = {
        "source": source.forge.SOURCE,
        "source_name": source.name,
        "delivery_id": delivery_id,
        "submitted_at": format_seconds(_requested_at(event, received_at)),
        "idempotency_key": key or content_key(event, source, delivery_id),
        "repo_url": event.repo_url,
        "repo_full_name": event.repo_full_name,
        "sender": event.sender,
        "traceparent": traceparent,
    }
    if source.sampler is not None:
        fields["traceparent"] = message_traceparent(traceparent, own_id, source.sampler)
    try:
        if isinstance(event, Command) and event.word is CommandKind.CANCEL:
            fields |= {
                "schema_version": JobCancelV1.VERSION,
                "cancel_id": own_id,
                "change_number": event.number,
            }
            cancel, body = JobCancelV1.compose(_present(fields))
            return PlannedCancel(cancel=cancel, body=body)
        fields |= {
            "schema_version": JobRequestV1.VERSION,
            "request_id": own_id,
            "commit_sha": event.commit_sha,
            "ref": event.ref,
            "event": kind_of(event),
            **_of_kind(event),
        }
        if ruling is not BUILT:
            fields |= _ruled(ruling)
        request, body = JobRequestV1.compose(_present(fields))
        return PlannedRun(request=request, body=body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        return Malformed(
            detail="; ".join(
                f"{problem['loc'][0]}: {problem['msg'].removeprefix('Value error, ')}" for problem in problems
            )
        )
    except InvalidMessage as error:
        return Malformed(detail=error.detail)


def _present(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _ruled(ruling: Ruling) -> dict[str, object]:
    return {
        "priority": ruling.priority,
        "runs_on": ruling.runs_on,
        "needs_approval": ruling.needs_approval or None,
        "approves": ruling.approves or None,
    }


def _requested_at(event: Event, received_at: float) -> float:
    """Return when the run was asked for, in seconds since the epoch.

    A late delivery must not count as newer than the events that overtook it, so the forge's clock decides for late
    deliveries. It decides for no others, because a small difference between two clocks would change the order.
    """
    occurred_at = event.occurred_at if isinstance(event, Push | ChangeRequest | Command) else None
    return (
        received_at
        if occurred_at is None or occurred_at > received_at - LATE_SECONDS
        else max(occurred_at, 0.0)
    )


def kind_of(event: Event) -> str:
    """Return the event's kind for messages, answers and metrics."""
    return CANCEL if isinstance(event, Command) and event.word is CommandKind.CANCEL else _KINDS[type(event)]


def content_key(event: Event, source: WebhookSource, delivery_id: str) -> str:
    """Return a key that is equal for two deliveries of one event from any hook.

    It is `push:`, `change_request:`, ... and a digest. A request that a person repeats is another event: the key then
    holds the payload's own mark of it or, where there is none, the delivery's id. Only GitHub sends such events, and it
    gives one event one id in all its hooks.
    """
    kind = kind_of(event)
    match event:
        case Push():
            what: tuple[object, ...] = (event.commit_sha, None, None)
        case ChangeRequest():
            what = (event.commit_sha, event.number, event.action)
        case Command():
            what = (event.word, event.number, event.asked)
        case Release():
            what = (event.action, event.asked)
        case Rerun() | Dispatch():
            what = (event.action, delivery_id)
    key_parts = (source.forge.SOURCE, spelled(event.repo_url), kind, event.ref, *what)
    return f"{kind}:{hashlib.sha256(orjson.dumps(key_parts)).hexdigest()}"


def _of_kind(event: Event) -> dict[str, object]:
    match event:
        case Push():
            return {"trusted": True, "before_sha": event.before_sha, "default_branch": event.default_branch}
        case ChangeRequest():
            return {
                "trusted": event.is_fork is False,
                "change_number": event.number,
                "target_branch": event.base_ref,
                "head_repo_url": event.head_repo_url,
                "before_sha": event.before_sha,
            }
        case Command():
            # The same run as for a push to the change request, so that the next push supersedes it.
            return {
                "event": CHANGE_REQUEST,
                "trusted": event.is_fork is False,
                "change_number": event.number,
                "target_branch": event.base_ref,
                "head_repo_url": event.head_repo_url,
            }
        case Rerun():
            # A commit that is not known to be on the repository's own branch may be a fork's.
            return {
                "trusted": event.is_fork is False,
                "change_number": event.number,
                "workflow_job_id": _job(event.check),
            }
        case Release():
            return {"trusted": True}
        case Dispatch():
            own = (event.workflow_path or "").startswith(WORKFLOWS)
            return {"trusted": True, "workflow_path": event.workflow_path if own else None}


def _job(check: str | None) -> str | None:
    """Return the job that a check shows, or None.

    None means the check of a whole run, or a check that is not ours.
    """
    return (
        (check or "").removeprefix(CHECKS) if (check or "").startswith(CHECKS) and check != CHECKS else None
    )
