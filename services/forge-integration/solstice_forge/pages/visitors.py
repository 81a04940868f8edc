"""Who sees the pages, and what keeps a browser from harm."""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from solstice_common.http.access import REALM, Access, Denied
from solstice_common.http.tokens import TokenScope
from solstice_forge.api.access import is_local

SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""No script at all: what the pages show was written by strangers."""

PageEndpoint = Callable[[Request], Awaitable[Response]]
RefusalPage = Callable[[int, str], Response]


def guarded(access: Access, shown: PageEndpoint, refusing: RefusalPage) -> PageEndpoint:
    """The page, for those who may read; others get `refusing` (status, sentence), and a browser asks for a login."""

    async def answered(request: Request) -> Response:
        verdict = access.admit(
            TokenScope.READ, authorization=request.headers.get("authorization"), is_local=is_local(request)
        )
        if isinstance(verdict, Denied):
            response = refusing(verdict.status, verdict.detail)
            if verdict.status == 401:  # noqa: PLR2004
                # Its password is the token: no browser asks for a bearer token.
                response.headers["WWW-Authenticate"] = f'Basic {REALM}, charset="UTF-8"'
        else:
            response = await shown(request)
        response.headers.update(SECURITY_HEADERS)
        return response

    return answered
