"""Decides who may use the API.

A token decides; without tokens, only programs on this machine may.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from solstice_common.errors import StoreUnavailable
from solstice_common.http import local_callers
from solstice_common.http.access import Access, Caller, Denied
from solstice_common.http.tokens import TokenScope
from solstice_forge.decisions.triage import Refused
from solstice_forge.edge.answers import response
from solstice_forge.edge.webhooks import RETRY_AFTER_SECONDS

Endpoint = Callable[[Request, Caller], Awaitable[Response]]


def guarded(
    access: Access, needed: TokenScope, endpoint: Endpoint
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint, for callers with the needed scope.

    Others get 401 or 403; every caller gets 503 while the inbox cannot be used.
    """

    async def answered(request: Request) -> Response:
        verdict = access.admit(
            needed, authorization=request.headers.get("authorization"), is_local=is_local(request)
        )
        if isinstance(verdict, Denied):
            refusal = Refused(status=verdict.status, reason=verdict.reason, detail=verdict.detail)
            return refused(refusal, {"WWW-Authenticate": verdict.challenge})
        try:
            return await endpoint(request, verdict)
        except StoreUnavailable:
            return refused(
                Refused(
                    status=503,
                    reason="inbox_unavailable",
                    detail="the inbox cannot be used at the moment: nothing was stored, try again later",
                ),
                {"Retry-After": str(RETRY_AFTER_SECONDS)},
            )

    return answered


def is_local(request: Request) -> bool:
    """Whether the request comes directly from a program on this machine.

    A proxy on this machine, which lets other callers reach us, is recognised by the headers it adds, by the
    name that it passes on, or by HTTP/1.0 (nginx by default). A page in a browser is recognised by `Origin`,
    or, when its name was bound to 127.0.0.1, by `Host`.
    """
    peer = request.client
    return "origin" not in request.headers and local_callers.is_local(
        peer=peer.host if peer else None,
        headers=request.scope["headers"],
        http_version=request.scope.get("http_version", ""),
    )


def refused(refusal: Refused, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a refused call: `{"error": SENTENCE, "reason": WORD}`."""
    return json({"error": refusal.detail, "reason": refusal.reason}, refusal.status, headers)


def json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that no cache may store: it is for one caller, and describes the present."""
    return response(status, content, {"Cache-Control": "no-store", **(headers or {})})
