"""An answer is one write, also when uvicorn writes it in parts."""

from typing import Any

from solstice_common.http.server.protocol import BoundedProtocol
from tests.http_transports import Socket, connected, feed

REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n%b\r\nab"


async def _app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await receive()
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"yes"})


async def answered(*requests: bytes) -> Socket:
    """The writes in answer to requests that arrived together."""
    protocol, socket = connected(BoundedProtocol, _app)
    await feed(protocol, socket, [b"".join(requests)])
    return socket


async def test_head_and_body_of_an_answer_go_out_together() -> None:
    socket = await answered(REQUEST % b"")
    (answer,) = socket.written
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert answer.endswith(b"\r\n\r\nyes")
    assert not socket.closed


async def test_written_bytes_are_sent_before_the_connection_is_closed() -> None:
    socket = await answered(REQUEST % b"connection: close\r\n")
    assert b"".join(socket.written).endswith(b"\r\n\r\nyes")
    assert socket.closed


async def test_answers_keep_the_order_of_their_requests() -> None:
    socket = await answered(REQUEST % b"", REQUEST % b"")
    assert b"".join(socket.written).count(b"HTTP/1.1 202 ") == 2


async def test_a_body_is_whole_in_however_many_pieces_it_came() -> None:
    bodies = []

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        whole, more = b"", True
        while more:
            message = await receive()
            whole, more = whole + message["body"], message.get("more_body", False)
        bodies.append(whole)
        await _app(scope, _nothing, send)

    head = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 6\r\n\r\n"
    for pieces in (
        [head + b"abcdef"],
        [head, b"abcdef"],
        [head + b"ab", b"cd", b"ef"],
        [head, b"a", b"bcdef"],
    ):
        protocol, socket = connected(BoundedProtocol, reads)
        await feed(protocol, socket, pieces)
    assert bodies == [b"abcdef"] * 4


async def _nothing() -> None:
    return None
