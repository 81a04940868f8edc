"""The HTTP side: webhooks in, one JSON sentence out; health, readiness and metrics beside it."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.gathering import Gathering
from solstice_common.metrics import CONTENT_TYPE
from solstice_forge.answers import JSON, Answer, Field, encoded
from solstice_forge.forges.protocol import Headers
from solstice_forge.inbox.protocol import Decision, Inbox, Kept, NewDelivery
from solstice_forge.keeping import new_delivery
from solstice_forge.lockstep import Steps, lockstep, walk
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.settings import MAX_BODY_BYTES
from solstice_forge.shared_timeout import SharedTimeout
from solstice_forge.sources import Source, how_to_configure
from solstice_forge.triage import Call, Refused, triaging

log = structlog.get_logger("solstice_forge.app")

RETRY_AFTER_SECONDS: Final = 10
BODY_SECONDS: Final = 30.0
"""Forges give up after 5 to 10 s; who takes longer to send is no forge."""
THREAD_BYTES: Final = 256 * 1024
"""A larger body is checked and read in a thread, so that others need not wait for it."""
_WEBHOOK: Final = re.compile(r"/webhooks/[^/]+/?")
NOBODY: Final = "unknown"
"""The source in metrics when the URL names none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the application is wired to."""

    inbox: Inbox
    sources: Mapping[str, Source]
    metrics: Metrics
    broker_health: Callable[[], BrokerHealth]
    relay_problem: Callable[[], str | None] = field(default=lambda: None)
    clock: Callable[[], float] = time.time
    max_body_bytes: int = MAX_BODY_BYTES


def create_app(parts: Parts, api: Sequence[BaseRoute] = ()) -> ASGIApp:
    """`POST /webhooks/{source}`, `GET /healthz`, `/readyz`, `/metrics`, and the routes of the API."""
    webhooks, probes = Webhooks(parts), Probes(parts)
    app = Starlette(
        routes=[
            *_both("/webhooks/{source}", webhooks, "POST"),
            *_both("/healthz", probes.alive, "GET"),
            *_both("/readyz", probes.ready, "GET"),
            *_both("/metrics", probes.metrics, "GET"),
            *api,
        ],
        exception_handlers={HTTPException: _http_error, Exception: _failed},
    )
    # A redirect would lose the delivery: forges do not follow one with the body.
    app.router.redirect_slashes = False

    return _Front(webhooks, app)


@dataclass(frozen=True, slots=True)
class _Front:
    """Webhooks go past the router and what it wraps around an endpoint: that was a quarter of their cost."""

    webhooks: "Webhooks"
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_webhook = (
            scope["type"] == "http" and scope["method"] == "POST" and _WEBHOOK.fullmatch(scope["path"])
        )
        await (self.webhooks if is_webhook else self.app)(scope, receive, send)

    @property
    def whole_bytes(self) -> int:
        return self.webhooks.whole_bytes

    def take_whole(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[Answer], None]
    ) -> bool:
        return self.webhooks.take_whole(name, headers, body, answer)


class Webhooks:
    """Takes deliveries: what is genuine is durable before it is answered, what is not is never written.

    Speaks ASGI by itself (asgi.readthedocs.io/en/latest/specs/www.html): this is where every webhook passes, and
    Starlette's objects would cost more than what we do with them.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.whole_bytes = min(THREAD_BYTES, parts.max_body_bytes)
        self._patience = SharedTimeout(BODY_SECONDS)
        self._taken: Gathering[Call, Kept | Refused | Exception] = Gathering(
            lambda calls: asyncio.create_task(self._take(calls), name="webhooks-of-a-turn")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope["path"].split("/")[2], scope, receive)
        except Exception as error:  # noqa: BLE001  whatever it is, the forge is told and the log has it
            answer = _broken(scope["path"], error)
        await answer(send)

    async def _answer(self, name: str, scope: Scope, receive: Receive) -> Answer:
        began = time.perf_counter()
        source = self._parts.sources.get(name)
        if source is None:
            outcome: Kept | Refused = Refused(
                status=404, reason="unknown_source", detail=how_to_configure(name)
            )
        else:
            outcome = await self._outcome(source, scope, receive)
        return self._concluded(NOBODY if source is None else name, outcome, began)

    def take_whole(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[Answer], None]
    ) -> bool:
        """As TakesWhole says; what is for a source that there is not goes the long way."""
        source = self._parts.sources.get(name)
        if source is None:
            return False
        began = time.perf_counter()

        def end(taken: "asyncio.Future[Kept | Refused | Exception]") -> None:
            try:
                ended = self._concluded(name, _outcome_in(taken.result()), began)
            except Exception as error:  # noqa: BLE001  as above
                ended = _broken(f"/webhooks/{name}", error)
            answer(ended)

        call = Call(source, _text(headers), body, self._parts.clock())
        self._taken.ask(call).add_done_callback(end)
        return True

    def _concluded(self, label: str, outcome: Kept | Refused, began: float) -> Answer:
        """The answer, counted and, when it is a refusal, logged."""
        decision = "refused" if isinstance(outcome, Refused) else outcome.decision.value
        self._parts.metrics.delivery(label, decision, outcome.reason, time.perf_counter() - began)
        if isinstance(outcome, Kept):
            return _kept(outcome)
        log.warning(
            LogEvent.WEBHOOK_REFUSED,
            source=label,
            status=outcome.status,
            reason=outcome.reason,
            detail=outcome.detail,
        )
        return _refused(outcome)

    async def _outcome(self, source: Source, scope: Scope, receive: Receive) -> Kept | Refused:
        headers = _text(scope["headers"])
        body = await self._body(source, headers, receive)
        if isinstance(body, Refused):
            return body
        call = Call(source, headers, body, self._parts.clock())
        outcome: Kept | Refused | Exception
        if len(body) > THREAD_BYTES:
            looked = await asyncio.to_thread(lambda: walk(_examining(call)))
            outcome = looked if isinstance(looked, Refused) else (await self._keep([looked]))[0]
        else:
            outcome = await self._taken(call)
        return _outcome_in(outcome)

    async def _body(self, source: Source, headers: Mapping[str, str], receive: Receive) -> bytes | Refused:
        """The whole body, unless it is too large: then no byte more of it is read."""
        limit = self._parts.max_body_bytes
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            return _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        try:
            with self._patience:
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

    def _aborted(self, source: Source, received_bytes: int) -> Refused:
        log.info(LogEvent.WEBHOOK_ABORTED, source=source.name, received_bytes=received_bytes)
        return Refused(
            status=408,
            reason="body_incomplete",
            detail=f"the body was not here within {BODY_SECONDS:.0f} s: send it again",
        )

    async def _take(self, calls: Sequence[Call]) -> Sequence[Kept | Refused | Exception]:
        """What came in one turn of the event loop is looked at together, and kept together."""
        looked = lockstep([_examining(call) for call in calls])
        kept = iter(await self._keep([each for each in looked if isinstance(each, NewDelivery)]))
        return [next(kept) if isinstance(each, NewDelivery) else each for each in looked]

    async def _keep(self, deliveries: Sequence[NewDelivery]) -> Sequence[Kept | Refused | Exception]:
        kept = await self._parts.inbox.keep_all(deliveries) if deliveries else ()
        return [_told(delivery, each) for delivery, each in zip(deliveries, kept, strict=True)]


def _text(headers: Iterable[Field]) -> Headers:
    """By name; of several with one name the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _outcome_in(taken: Kept | Refused | Exception) -> Kept | Refused:
    if isinstance(taken, Exception):
        raise taken
    return taken


def _examining(call: Call) -> Steps[NewDelivery | Refused]:
    """What a call is, and what is to be kept of it, in steps."""
    understood = yield from triaging(call)
    if isinstance(understood, Refused):
        return understood
    yield
    return new_delivery(call.source, call.headers, understood, call.now)


def _told(delivery: NewDelivery, kept: Kept | Exception) -> Kept | Refused | Exception:
    """The log has what became of it; what could not be stored is refused."""
    if isinstance(kept, StoreUnavailable):
        log.error(
            LogEvent.WEBHOOK_NOT_KEPT,
            source=delivery.source_name,
            delivery_id=delivery.delivery_id,
            detail=str(kept),
        )
        return Refused(
            status=503,
            reason="inbox_unavailable",
            detail="this delivery could not be stored: send it again later",
        )
    if isinstance(kept, Kept):
        log.info(
            LogEvent.WEBHOOK_KEPT,
            source=delivery.source_name,
            delivery_id=kept.delivery_id,
            event_name=delivery.event_name,
            decision=kept.decision.value,
            reason=kept.reason,
            request_ids=kept.request_ids,
            repo_full_name=delivery.repo_full_name,
        )
    return kept


class Probes:
    """What watches the service asks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def alive(self, _request: Request) -> Response:
        return _json(200, {"status": "alive"})

    async def ready(self, _request: Request) -> Response:
        """200 when a webhook would be kept and published at once; else 503 that names what is missing.

        With the broker away webhooks are still taken, so a proxy must not stop sending them because of this.
        """
        missing: dict[str, str] = {}
        health = self._parts.broker_health()
        if not health.connected:
            missing["broker"] = health.detail or "not connected"
        elif problem := health.blocked or self._parts.relay_problem():
            missing["broker"] = problem
        backlog: int | None = None
        try:
            backlog = await self._parts.inbox.backlog()
        except StoreUnavailable as error:
            missing["inbox"] = str(error)
        if not self._parts.sources:
            missing["sources"] = "no webhook secret is set, so every webhook is answered with 404"
        state = {"status": "not ready" if missing else "ready", "missing": missing, "backlog": backlog}
        return _json(503 if missing else 200, state)

    async def metrics(self, _request: Request) -> Response:
        try:
            backlog = await self._parts.inbox.backlog()
        except StoreUnavailable as error:
            raise HTTPException(503, f"the inbox cannot be counted: {error}") from error
        rendered = self._parts.metrics.render(backlog, self._parts.broker_health())
        return Response(rendered, media_type=CONTENT_TYPE)


def _both(
    path: str, endpoint: Callable[[Request], Awaitable[Response]] | ASGIApp, method: str
) -> list[Route]:
    """The route with and without a slash at the end."""
    return [Route(one, endpoint, methods=[method]) for one in (path, f"{path}/")]


def _kept(kept: Kept) -> Answer:
    # Every answer to a genuine delivery is a 2xx: anything else counts as a failure of ours, and GitLab stops
    # calling a hook that fails too often.
    return Answer(
        202 if kept.decision is Decision.ACCEPTED else 200,
        {
            "delivery_id": kept.delivery_id,
            "decision": kept.decision.value,
            "reason": kept.reason,
            "request_ids": kept.request_ids,
        },
    )


def _too_large(limit: int) -> Refused:
    return Refused(
        status=413,
        reason="too_large",
        detail=f"the body is larger than {limit} bytes: FORGE_MAX_BODY_BYTES allows no more",
    )


def _refused(refused: Refused) -> Answer:
    headers = []
    if refused.status == 503:  # noqa: PLR2004
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
    if refused.reason in {"too_large", "body_incomplete"}:
        # What is left of the body will not be read.
        headers.append((b"connection", b"close"))
    return Answer(refused.status, {"error": refused.detail, "reason": refused.reason}, headers)


def _json(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(content), status, dict(headers or {}), JSON)


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the words of everything else here."""
    assert isinstance(error, HTTPException)  # noqa: S101  for the type checker: registered for it alone
    sentence, reason = error.detail, "failed"
    match error.status_code:
        case 404:
            sentence, reason = "nothing is here: webhooks go to /webhooks/SOURCE", "not_found"
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            sentence = f"{request.method} is not for this address, use {allowed}: set the webhook to POST"
            reason = "method_not_allowed"
        case _:
            pass
    return _json(error.status_code, {"error": sentence, "reason": reason}, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    answer = _broken(request.url.path, error)
    return _json(answer.status, answer.content)


def _broken(path: str, error: Exception) -> Answer:
    log.error(LogEvent.WEBHOOK_FAILED, path=path, exc_info=error)
    return Answer(
        500, {"error": "a mistake of ours, now in the log: send it again later", "reason": "internal_error"}
    )
