"""Answers webhooks: stores a delivery, and returns one JSON sentence."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from starlette.types import Receive, Scope, Send

from solstice_common.errors import StoreUnavailable
from solstice_common.http.server.refusals import Field
from solstice_common.runtime.batcher import UNLIMITED, Batcher
from solstice_forge.decisions.lockstep import Steps, lockstep, walk
from solstice_forge.decisions.sources import WebhookSource, how_to_configure
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import Refused, WebhookCall, proof_lacking, triaging
from solstice_forge.edge.answers import HttpAnswer
from solstice_forge.edge.shared_timeout import SharedTimeout
from solstice_forge.edge.urls import source_in_path
from solstice_forge.forges.protocol import Headers
from solstice_forge.inbox.protocol import Decision, KeepResult, NewDelivery, WebhookInbox
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics

log = structlog.get_logger(__name__)

RETRY_AFTER_SECONDS: Final = 10
BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive: forges give up after 5 to 10 s, so a slower sender is no forge."""
THREAD_BYTES: Final = 256 * 1024
"""A larger body is checked and parsed in a thread, so that other requests need not wait for it."""
UNKNOWN_SOURCE: Final = "unknown"
"""The source in metrics when the URL names no configured source."""


class Webhooks:
    """The webhooks: genuine deliveries are stored before the answer, other calls are never written.

    It implements ASGI itself (asgi.readthedocs.io/en/latest/specs/www.html): every webhook passes here, and Starlette's
    objects would cost more than the work done with them.
    """

    def __init__(
        self,
        inbox: WebhookInbox,
        sources: Mapping[str, WebhookSource],
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        max_body_bytes: int,
    ) -> None:
        self._inbox, self._sources, self._metrics = inbox, sources, metrics
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self.max_complete_bytes = min(THREAD_BYTES, max_body_bytes)
        self._body_timeout = SharedTimeout(BODY_SECONDS)
        self._batcher: Batcher[WebhookCall, KeepResult | Refused | Exception] = Batcher(
            self._take, name="webhooks", at_once=UNLIMITED, most=UNLIMITED
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(source_in_path(scope["path"]) or "", scope, receive)
        except Exception as error:  # noqa: BLE001  every error is answered with 500 and logged
            answer = broken(scope["path"], error)
        await answer(send)

    async def _answer(self, name: str, scope: Scope, receive: Receive) -> HttpAnswer:
        began = time.perf_counter()
        source = self._sources.get(name)
        unread = False
        if source is None:
            outcome: KeepResult | Refused = Refused(
                status=404, reason="unknown_source", detail=how_to_configure(name)
            )
        elif (unproven := proof_lacking(source, _text(scope["headers"]))) is not None:
            outcome, unread = unproven, True
        else:
            outcome = await self._outcome(source, scope, receive)
        answer = self._concluded(UNKNOWN_SOURCE if source is None else name, outcome, began)
        if isinstance(outcome, KeepResult):
            scope.get("state", {}).get("trust", _do_nothing)()
        # The body was not read and will not be.
        if unread:
            return HttpAnswer(answer.status, answer.content, [*answer.headers, (b"connection", b"close")])
        return answer

    def is_unproven(self, name: str, headers: Sequence[Field]) -> bool:
        """As CompleteRequestApp says."""
        source = self._sources.get(name)
        return source is not None and proof_lacking(source, _text(headers)) is not None

    def take_complete(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[HttpAnswer], None]
    ) -> bool:
        """As CompleteRequestApp says; a call for an unknown source goes through ASGI."""
        source = self._sources.get(name)
        if source is None:
            return False
        began = time.perf_counter()

        def end(outcome: "asyncio.Future[KeepResult | Refused | Exception]") -> None:
            try:
                ended = self._concluded(name, _outcome_in(outcome.result()), began)
            except Exception as error:  # noqa: BLE001  every error is answered with 500 and logged
                ended = broken(f"/webhooks/{name}", error)
            answer(ended)

        call = WebhookCall(source, _text(headers), body, self._clock())
        self._batcher(call).add_done_callback(end)
        return True

    def _concluded(self, label: str, outcome: KeepResult | Refused, began: float) -> HttpAnswer:
        """Count the outcome, log it if it is a refusal, and return its answer."""
        decision = "refused" if isinstance(outcome, Refused) else outcome.decision.value
        self._metrics.delivery(label, decision, outcome.reason, time.perf_counter() - began)
        if isinstance(outcome, KeepResult):
            return _keep_answer(outcome)
        log.warning(
            LogEvent.WEBHOOK_REFUSED,
            source=label,
            status=outcome.status,
            reason=outcome.reason,
            detail=outcome.detail,
        )
        return _refused(outcome)

    async def _outcome(self, source: WebhookSource, scope: Scope, receive: Receive) -> KeepResult | Refused:
        headers = _text(scope["headers"])
        body = await self._body(source, headers, receive)
        if isinstance(body, Refused):
            return body
        call = WebhookCall(source, headers, body, self._clock())
        outcome: KeepResult | Refused | Exception
        if len(body) > THREAD_BYTES:
            examined = await asyncio.to_thread(lambda: walk(_examining(call)))
            outcome = examined if isinstance(examined, Refused) else (await self._keep([examined]))[0]
        else:
            outcome = await self._batcher(call)
        return _outcome_in(outcome)

    async def _body(
        self, source: WebhookSource, headers: Mapping[str, str], receive: Receive
    ) -> bytes | Refused:
        """Return the whole body; stop reading once it is too large."""
        limit = self._max_body_bytes
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            return _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        try:
            with self._body_timeout:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return self._aborted(source, size)
                    chunk = message.get("body", b"")
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        return _too_large(limit)
                    if not message.get("more_body", False):
                        return chunk if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError:
            return self._aborted(source, size)

    def _aborted(self, source: WebhookSource, received_bytes: int) -> Refused:
        log.info(LogEvent.WEBHOOK_ABORTED, source=source.name, received_bytes=received_bytes)
        return Refused(
            status=408,
            reason="body_incomplete",
            detail=f"the body was not here within {BODY_SECONDS:.0f} s: send it again",
        )

    async def _take(self, calls: Sequence[WebhookCall]) -> Sequence[KeepResult | Refused | Exception]:
        """Examine and store together the calls that came in one iteration of the event loop."""
        examined = lockstep([_examining(call) for call in calls])
        results = iter(await self._keep([each for each in examined if isinstance(each, NewDelivery)]))
        return [next(results) if isinstance(each, NewDelivery) else each for each in examined]

    async def _keep(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Refused | Exception]:
        results = await self._inbox.keep_all(deliveries) if deliveries else ()
        return [_logged(delivery, each) for delivery, each in zip(deliveries, results, strict=True)]


def _do_nothing() -> None:
    pass


def _text(headers: Iterable[Field]) -> Headers:
    """Return the headers by name; the last one wins where several have one name."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _outcome_in(outcome: KeepResult | Refused | Exception) -> KeepResult | Refused:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _examining(call: WebhookCall) -> Steps[NewDelivery | Refused]:
    """Decide in steps what a call is and what to store of it."""
    understood = yield from triaging(call)
    if isinstance(understood, Refused):
        return understood
    yield
    return new_delivery(call.source, call.headers, understood, call.now)


def _logged(delivery: NewDelivery, results: KeepResult | Exception) -> KeepResult | Refused | Exception:
    """Log the outcome of a delivery; refuse a delivery that could not be stored."""
    if isinstance(results, StoreUnavailable):
        log.error(
            LogEvent.WEBHOOK_NOT_STORED,
            source=delivery.source_name,
            delivery_id=delivery.delivery_id,
            detail=str(results),
        )
        return Refused(
            status=503,
            reason="inbox_unavailable",
            detail="this delivery could not be stored: send it again later",
        )
    if isinstance(results, KeepResult):
        log.info(
            LogEvent.WEBHOOK_STORED,
            source=delivery.source_name,
            delivery_id=results.delivery_id,
            event_name=delivery.event_name,
            decision=results.decision.value,
            reason=results.reason,
            request_ids=results.request_ids,
            repo_full_name=delivery.repo_full_name,
        )
    return results


def _keep_answer(results: KeepResult) -> HttpAnswer:
    # Every answer to a genuine delivery is a 2xx: the forge counts any other as our failure, and GitLab stops
    # calling a hook that fails too often.
    return HttpAnswer(
        202 if results.decision is Decision.ACCEPTED else 200,
        {
            "delivery_id": results.delivery_id,
            "decision": results.decision.value,
            "reason": results.reason,
            "request_ids": results.request_ids,
        },
    )


def _too_large(limit: int) -> Refused:
    return Refused(
        status=413,
        reason="too_large",
        detail=f"the body is larger than {limit} bytes: FORGE_MAX_BODY_BYTES allows no more",
    )


def _refused(refused: Refused) -> HttpAnswer:
    headers = []
    if refused.status == 503:  # noqa: PLR2004
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
    if refused.reason in {"too_large", "body_incomplete"}:
        # The rest of the body will not be read.
        headers.append((b"connection", b"close"))
    return HttpAnswer(refused.status, {"error": refused.detail, "reason": refused.reason}, headers)


def broken(path: str, error: Exception) -> HttpAnswer:
    """Return the answer for an unexpected error, which only the log describes."""
    log.error(LogEvent.WEBHOOK_FAILED, path=path, exc_info=error)
    return HttpAnswer(
        500, {"error": "an internal error, now in the log: send it again later", "reason": "internal_error"}
    )
