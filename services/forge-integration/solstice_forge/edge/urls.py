"""One table of URLs for both entries: the fast path and the ASGI application.

Whole webhooks come in by the bytes of their URL (`fast_path`), all other requests by ASGI (`app`). The API and the
pages bring routes of their own, which only ASGI knows.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from solstice_common.values.value import Value


class Url(Value, frozen=True):
    """One URL, with or without a final slash, and its only method."""

    method: str
    path: str

    def routes(self, endpoint: Callable[[Request], Awaitable[Response]] | ASGIApp) -> list[Route]:
        """Return the entries of the router."""
        return [Route(path, endpoint, methods=[self.method]) for path in (self.path, f"{self.path}/")]

    def pattern(self, source: str) -> str:
        """Return the pattern of its path, where `source` is the pattern of a source's name."""
        return self.path.replace("{source}", f"({source})") + "/?"


WEBHOOK: Final = Url("POST", "/webhooks/{source}")
ALIVE: Final = Url("GET", "/healthz")
READY: Final = Url("GET", "/readyz")
METRICS: Final = Url("GET", "/metrics")

_PATH: Final = re.compile(WEBHOOK.pattern("[^/]+"))
_BYTES: Final = re.compile(WEBHOOK.pattern("[A-Za-z0-9._-]+").encode())


def source_in_path(path: str) -> str | None:
    """Return the source of a webhook's path; None for any other path."""
    named = _PATH.fullmatch(path)
    return named[1] if named else None


def source_in_bytes(url: bytes) -> str | None:
    """Return the source of a webhook's URL as it was sent.

    None where ASGI has to read the URL first.
    """
    named = _BYTES.fullmatch(url)
    return named[1].decode() if named else None
