"""Requests become runs. Pure: which of them are new is for the store's unique indexes to say."""

import json
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from solstice_common.messages import JobRequestV1, decode_request
from solstice_orchestrator.cancels import change_key
from solstice_orchestrator.jobs import RunState
from solstice_orchestrator.statuses import RUN_CONTEXT, describe_run, encode_status, status_about
from solstice_orchestrator.store.changes import Message
from solstice_orchestrator.store.moment import Moment
from solstice_orchestrator.store.protocol import OutboxKind
from solstice_orchestrator.store.rows import key


class NewRun(NamedTuple):
    """A request on its way into the store, and what makes it unique."""

    run_id: str
    request_key: bytes
    idempotency_key: bytes | None
    repository: str
    change_key: str | None
    ref: str | None
    request: JobRequestV1
    body: bytes


def new_runs(moment: Moment, requests: Sequence[JobRequestV1], bodies: Sequence[bytes]) -> list[NewRun]:
    """The runs that these requests would be, in their order."""
    return [
        NewRun(
            moment.new_id(),
            key(request.request_id),
            None if request.idempotency_key is None else key(request.idempotency_key),
            request.repo_full_name or request.repo_url,
            change_key(request),
            request.ref,
            request,
            body,
        )
        for request, body in zip(requests, bodies, strict=True)
    ]


def first_statuses(moment: Moment, runs: Sequence[NewRun]) -> list[Message]:
    """What is told of runs that turned out to be new."""
    at, base = moment.stamp, moment.rules.public_url
    description = describe_run(RunState.PLANNING, "", ())
    return [
        Message(
            OutboxKind.STATUS,
            run.request.request_id,
            encode_status(
                replace(
                    status_about(run.request),
                    status_id=moment.new_id(),
                    run_id=run.run_id,
                    sequence=1,
                    context=RUN_CONTEXT,
                    state=RunState.PLANNING,
                    description=description,
                    occurred_at=at,
                    target_url=base and f"{base}/runs/{run.run_id}",
                )
            ),
        )
        for run in runs
    ]


def again(moment: Moment, body: bytes) -> JobRequestV1:
    """The same request, on purpose: under a new request id and without the old idempotency key."""
    # Not by the fast reader: it would round large integers of fields that we do not know.
    fields = json.loads(body)
    fields.pop("idempotency_key", None)
    fields["request_id"] = str(uuid.UUID(int=moment.rules.rng.getrandbits(128), version=4))
    fields["submitted_at"] = moment.stamp
    return decode_request(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
