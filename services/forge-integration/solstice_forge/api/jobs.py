"""Serves `POST /api/v1/jobs`: a program requests the build of a commit."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from solstice_common.http.access import Caller
from solstice_common.tracing.samplers import Sampler
from solstice_forge.api.access import json, refused
from solstice_forge.api.api_models import JobTaken
from solstice_forge.api.request_delivery import delivery_of, is_conflict, read_job, read_key
from solstice_forge.api.token_rate import RateDecision, TokenBucket, headers_of, take
from solstice_forge.decisions.triage import Refused
from solstice_forge.edge.answers import JSON
from solstice_forge.edge.webhooks import BODY_SECONDS, RETRY_AFTER_SECONDS
from solstice_forge.inbox.protocol import Decision, Inbox, NewDelivery
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics

log = structlog.get_logger(__name__)

MAX_JOB_BYTES: Final = 64 * 1024


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The endpoint for requested jobs: the inbox stores them, and the relay publishes them."""

    inbox: Inbox
    metrics: Metrics
    per_minute: int
    max_backlog: int
    queued: Callable[[], int] = lambda: 0
    """The number of requests in the queue of the orchestrators."""
    sampler: Sampler | None = None
    """Which requests are traced; None when none is."""
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    new_id: Callable[[], str] = _new_id
    buckets: dict[str, TokenBucket] = field(default_factory=dict)
    """The buckets by the name of the token; never more than there are tokens."""

    async def enqueue(self, request: Request, caller: Caller) -> Response:
        """202 once the request is durable.

        The same key and body give the same answer, as often as they are sent.
        """
        decision = take(self.buckets.get(caller.name), per_minute=self.per_minute, now=self.monotonic())
        self.buckets[caller.name] = decision.bucket
        rate_headers = headers_of(decision, per_minute=self.per_minute)
        outcome = await self._outcome(request, caller, decision)
        if isinstance(outcome, Refused):
            self.metrics.job_requested(outcome.reason)
            log.warning(
                LogEvent.JOB_REFUSED,
                caller=caller.name,
                status=outcome.status,
                reason=outcome.reason,
                detail=outcome.detail,
            )
            more = {"Retry-After": str(RETRY_AFTER_SECONDS)} if outcome.status == 503 else {}  # noqa: PLR2004
            return refused(outcome, {**rate_headers, **more})
        assert outcome.request_id is not None  # noqa: S101  for the type checker: a request always asks for something
        answer = JobTaken(request_id=outcome.request_id, delivery_id=outcome.delivery_id)
        where = {"Location": f"/api/v1/deliveries/{outcome.delivery_id}"}
        return json(answer.model_dump(), 202, {**rate_headers, **where})

    async def _outcome(
        self, request: Request, caller: Caller, decision: RateDecision
    ) -> NewDelivery | Refused:
        if not decision.allowed:
            return Refused(
                status=429,
                reason="too_many_requests",
                detail=f"{caller.name} may ask for {self.per_minute} jobs a minute: try again in {decision.wait_seconds} s",
            )
        key = read_key(request.headers.getlist("idempotency-key"))
        if isinstance(key, Refused):
            return key
        body = await _body(request)
        job = body if isinstance(body, Refused) else read_job(body, self.clock())
        if isinstance(job, Refused):
            return job
        if await self.inbox.backlog() + self.queued() >= self.max_backlog:
            return Refused(
                status=503,
                reason="overloaded",
                detail=f"{self.max_backlog} requests or more wait to be taken (FORGE_API_BACKLOG): try again later",
            )
        delivery = delivery_of(
            job,
            caller=caller.name,
            key=key,
            new_id=self.new_id(),
            headers=request.headers,
            now=self.clock(),
            sampler=self.sampler,
        )
        return await self._keep(delivery, caller)

    async def _keep(self, delivery: NewDelivery, caller: Caller) -> NewDelivery | Refused:
        result = await self.inbox.keep(delivery)
        if is_conflict(delivery, result):
            return Refused(
                status=422,
                reason="idempotency_key_reused",
                detail="this Idempotency-Key was used for another job: take a new key for each job",
            )
        self.metrics.job_requested(result.decision.value)
        log.info(
            LogEvent.JOB_STORED,
            caller=caller.name,
            delivery_id=delivery.delivery_id,
            request_id=delivery.request_id,
            repeated=result.decision is Decision.DUPLICATE,
        )
        return delivery


async def _body(request: Request) -> bytes | Refused:
    """The body, or the refusal of one that is too large, slow or no JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        return Refused(
            status=415,
            reason="unsupported_content_type",
            detail=f"send the job as {JSON}, not as {kind or 'nothing'}",
        )
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_JOB_BYTES:
                    return Refused(
                        status=413, reason="too_large", detail=f"a job has at most {MAX_JOB_BYTES} bytes"
                    )
    except (TimeoutError, ClientDisconnect):
        return Refused(
            status=408,
            reason="body_incomplete",
            detail=f"the body was not here within {BODY_SECONDS:.0f} s: send it again",
        )
    return body
