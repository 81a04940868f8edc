"""What an event asks for: a job request with a stable id and a content key. Pure."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import orjson
from pydantic import ValidationError

from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobRequestV1, derive_request_id, format_timestamp
from solstice_forge.events import ChangeRequest, Event, Malformed, Push
from solstice_forge.sources import Source

PUSH: Final = "push"
CHANGE_REQUEST: Final = "change_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A run is asked for; `body` is the canonical bytes of `request`."""

    request: JobRequestV1
    body: bytes


def plan(
    event: Event, *, source: Source, delivery_id: str, received_at: float, traceparent: str | None
) -> Wanted | Malformed:
    """The request for an event.

    The same delivery gives the same request id; two hooks that see one event give the same idempotency key.
    A push is trusted, since only who may write can push. A change request is trusted only when it is known to come
    from the same repository. Malformed: the message's schema refuses what the payload holds, an odd `repo_url` say.
    """
    fields: dict[str, object] = {
        "schema_version": JobRequestV1.VERSION,
        "request_id": derive_request_id(source.name, delivery_id),
        "source": source.forge.SOURCE,
        "source_name": source.name,
        "delivery_id": delivery_id,
        "submitted_at": format_timestamp(datetime.fromtimestamp(received_at, UTC)),
        "idempotency_key": content_key(event, source),
        "repo_url": event.repo_url,
        "repo_full_name": event.repo_full_name,
        "commit_sha": event.commit_sha,
        "ref": event.ref,
        "event": kind_of(event),
        "sender": event.sender,
        "traceparent": traceparent,
        **_of_kind(event),
    }
    try:
        request = JobRequestV1.model_validate({k: v for k, v in fields.items() if v is not None})
        return Wanted(request=request, body=request.encode())
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        return Malformed(
            detail="; ".join(
                f"{problem['loc'][0]}: {problem['msg'].removeprefix('Value error, ')}" for problem in problems
            )
        )
    except InvalidMessage as error:
        return Malformed(detail=error.detail)


def kind_of(event: Event) -> str:
    """The word for it in messages, answers and metrics."""
    return PUSH if isinstance(event, Push) else CHANGE_REQUEST


def content_key(event: Event, source: Source) -> str:
    """The same for two deliveries of one event, whatever hook sent them: `push:` or `change_request:` and a digest."""
    kind = kind_of(event)
    number, action = (event.number, event.action) if isinstance(event, ChangeRequest) else (None, None)
    what = (source.forge.SOURCE, event.repo_url, kind, event.ref, event.commit_sha, number, action)
    return f"{kind}:{hashlib.sha256(orjson.dumps(what)).hexdigest()}"


def _of_kind(event: Event) -> dict[str, object]:
    if isinstance(event, Push):
        return {"trusted": True}
    return {
        "trusted": event.is_fork is False,
        "change_number": event.number,
        "head_repo_url": event.head_repo_url,
    }
