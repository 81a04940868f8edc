"""Makes a delivery of a job that the API requests. Pure.

Its key identifies it, and it is stored like a webhook.

The `Idempotency-Key` obeys the IETF draft of that name
(datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header): a string of RFC 8941, section 3.3.3. It
is also accepted without the quotes, as many clients send it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import BaseModel, ValidationError

from solstice_common.http.access import LOCAL
from solstice_common.messages import JobRequestV1, derive_request_id
from solstice_common.tracing.request_trace import message_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_common.values.delays import MAX_DELAY, too_far
from solstice_common.values.repo_urls import full_name_of
from solstice_common.values.times import format_seconds, parse_timestamp
from solstice_common.values.validation import in_words
from solstice_forge.api.api_models import JobInput
from solstice_forge.decisions.triage import Refused
from solstice_forge.inbox.protocol import Decision, KeepResult, NewDelivery

API_SOURCE_NAME: Final = "api"
"""The name of the source that API requests come by; no other source may have it."""
EVENT: Final = "job"
MANUAL: Final = "manual"
MAX_KEY: Final = 255
KEY_PATTERN: Final = r'^(?:"(?:[ !#-\[\]-~]|\\["\\])+"|[!#-~][!-~]*)$'
_KEY: Final = re.compile(KEY_PATTERN[1:-1])
_STORED_HEADERS: Final = ("content-type", "idempotency-key", "traceparent", "user-agent")


def read_job(body: bytes, now: float) -> JobInput | Refused:
    """Return the requested job in a body of JSON; `now` in seconds since the epoch."""
    try:
        job = JobInput.model_validate_json(body)
    except ValidationError as error:
        return Refused(status=400, reason="malformed", detail=f"this is no job: {problems_of(error)}")
    if job.not_before and too_far(parse_timestamp(job.not_before), datetime.fromtimestamp(now, UTC)):
        return Refused(
            status=400,
            reason="malformed",
            detail=f"this is no job: not_before: {job.not_before} is more than {MAX_DELAY.days} days ahead",
        )
    return job


def problems_of(error: ValidationError) -> str:
    """Return what is wrong, in one line."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {in_words(problem)}"
        for problem in error.errors(include_url=False, include_input=False)
    )


def read_key(sent: Sequence[str]) -> str | Refused | None:
    """Return the key in the values of the header, None when there is none."""
    if not sent:
        return None
    (text, *more) = sent
    if more or len(text) > MAX_KEY or not _KEY.fullmatch(text):
        return Refused(
            status=400,
            reason="bad_idempotency_key",
            detail=f"Idempotency-Key must be one string of printable ASCII, at most {MAX_KEY} characters, best a UUID",
        )
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def delivery_of(
    job: JobInput,
    *,
    caller: str,
    key: str | None,
    new_id: str,
    headers: Mapping[str, str],
    now: float,
    sampler: Sampler | None = None,
) -> NewDelivery:
    """Return the delivery for a request of `caller`.

    With a key it has the same id as every other request of that caller under that key, and the request's id
    shows whether the bodies are equal, too. So the inbox, which stores one delivery per id, decides which
    request was first. `sampler` says whether it is traced; None when nothing is.
    """
    delivery_id = new_id if key is None else derive_request_id(API_SOURCE_NAME, caller, key)
    body = _canonical(job)
    request_id = derive_request_id(API_SOURCE_NAME, delivery_id, hashlib.sha256(body).hexdigest())
    # One repository has one name, whether it came by hand, over the API or by a webhook.
    name = job.repo_full_name or full_name_of(job.repo_url)
    fields: dict[str, object] = {
        **job.model_dump(mode="json", exclude_none=True, exclude={"delay_seconds"}),
        # The delay counts from when the request was first stored: repeats have the same body.
        **({"not_before": format_seconds(now + job.delay_seconds)} if job.delay_seconds else {}),
        "schema_version": JobRequestV1.VERSION,
        "request_id": request_id,
        "source": MANUAL,
        "source_name": API_SOURCE_NAME,
        "delivery_id": delivery_id,
        "idempotency_key": f"{MANUAL}:{request_id}",
        "event": MANUAL,
        "submitted_at": format_seconds(now),
        # The scope to enqueue allows a caller to run code here.
        "trusted": True,
        **({} if name is None else {"repo_full_name": name}),
        **({} if caller == LOCAL else {"sender": caller}),
    }
    if sampler is not None:
        fields["traceparent"] = message_traceparent(headers.get("traceparent"), request_id, sampler)
    _, request = JobRequestV1.compose(fields)
    return NewDelivery(
        source_name=API_SOURCE_NAME,
        delivery_id=delivery_id,
        event_name=EVENT,
        repo_full_name=name,
        received_at=now,
        headers={name: headers[name] for name in _STORED_HEADERS if name in headers},
        body=body,
        reason=MANUAL,
        detail="asked for on this machine" if caller == LOCAL else f"asked for with the token {caller!r}",
        content_key=f"{MANUAL}:{request_id}",
        request_id=request_id,
        request=request,
    )


def is_conflict(delivery: NewDelivery, stored: KeepResult) -> bool:
    """Whether the first delivery stored under this id has a different request."""
    return stored.decision is Decision.DUPLICATE and stored.request_ids != (delivery.request_id,)


def _canonical(job: BaseModel) -> bytes:
    """Equal for two bodies with the same meaning; null fields are left out."""
    fields: dict[str, Any] = job.model_dump(mode="json", exclude_none=True)
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
