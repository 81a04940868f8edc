"""HTTP answers in JSON, sent through ASGI or as the bytes of HTTP."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Send

from solstice_common.http.server.refusals import Field
from solstice_common.values.value import Value

JSON: Final = "application/json"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class HttpAnswer(Value, frozen=True):
    """An HTTP answer in JSON; `headers` come in addition to those that describe the content."""

    status: int
    content: object
    headers: Sequence[Field] = ()

    async def __call__(self, send: Send) -> None:
        """Send the answer through ASGI."""
        body = encoded(self.content)
        await send({"type": "http.response.start", "status": self.status, "headers": [*self._fields(body)]})
        await send({"type": "http.response.body", "body": body})

    def after(self, further: Iterable[Field]) -> bytes:
        """Return the bytes of the answer, after the `further` headers (RFC 9112, section 2.1)."""
        body = encoded(self.content)
        fields = b"".join([b"%b: %b\r\n" % field for field in (*further, *self._fields(body))])
        return b"%b%b\r\n%b" % (_STATUS_LINES[self.status], fields, body)

    def _fields(self, body: bytes) -> Sequence[Field]:
        return (
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            *self.headers,
        )


def encoded(content: object) -> bytes:
    """Return JSON that ends with a newline, for people who call from a terminal."""
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def response(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return the same answer as a Starlette response."""
    return Response(encoded(content), status, dict(headers or {}), JSON)
