"""Generated requests in random pieces get the same answers on fast path and uvicorn.

`CUT_REQUESTS=10000 ./just test tests/unit/forge/edge/test_cut_requests.py` is the full run; by default there are fewer.
"""

import asyncio
import os
import random
from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from solstice_common.http.server.protocol import BoundedProtocol
from solstice_forge.edge.fast_path import CompleteRequestProtocol
from tests.http_transports import connected, feed
from tests.raw_http import status_code
from tests.unit.forge.edge.test_fast_path import CountingApp, cut, push

COUNT = int(os.environ.get("CUT_REQUESTS", "600"))
PATHS = ["/webhooks/acme"] * 6 + ["/webhooks/acme/", "/webhooks/acme?x=1", "/webhooks/nobody", "/elsewhere"]
MORE = ["", "", "", "X-Other: 1\r\nX-Other: 2\r\n", "Connection: close\r\n", "Expect: 100-continue\r\n"]
TWICE = [
    "X-Forgejo-Event: ping\r\n",
    "X-Forgejo-Signature: aa\r\n",
    "X-Forgejo-Delivery: other\r\n",
    "Host: other\r\n",
    "Content-Type: text/plain\r\n",
]
TRAILERS = ["X-Forgejo-Event: ping\r\n", "X-Forgejo-Signature: aa\r\n", "A: b\r\n" * 90, "A: b\r\n" * 101]


def made(rng: random.Random, number: int) -> tuple[bytes, bool]:
    """A request, and whether plain uvicorn answers it in the same way."""
    kind = rng.choice(["plain"] * 6 + ["twice", "trailer", "trailer", "garbled", "fields"])
    # What is answered before its body is read may be answered before its trailers are wrong.
    is_read = kind == "trailer"
    request = push(
        f"d-{number}",
        path=PATHS[0] if is_read else rng.choice(PATHS),
        method="POST" if is_read else rng.choice(["POST"] * 9 + ["PUT"]),
        version=rng.choice(["1.1"] * 9 + ["1.0"]) if kind != "trailer" else "1.1",
        more=rng.choice(TWICE)
        if kind == "twice"
        else "A: b\r\n" * 100
        if kind == "fields"
        else rng.choice(MORE),
        secret=rng.choice(["maple-lantern-42"] * 4 + ["wrong"]),
        padding=0 if is_read else rng.choice([0, 0, 0, 1000, 6000]),
        chunked=kind == "trailer" or rng.random() < 0.2,
    )
    if kind == "trailer":
        return request[:-2] + rng.choice(TRAILERS).encode() + b"\r\n", False
    if kind == "garbled":
        place = rng.randrange(len(request.partition(b"\r\n\r\n")[0]))
        return request[:place] + rng.choice([b"\0", b"\r", b"\n", b" ", b"\xff"]) + request[place:], False
    return request, kind == "plain"


async def reported(kind: type[HttpToolsProtocol], pieces: Sequence[bytes]) -> tuple[int, object]:
    """The status of the answer and the rows that were kept."""
    counted = CountingApp()
    protocol, socket = connected(kind, counted)
    await feed(protocol, socket, pieces)
    answers = b"".join(socket.written).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answers.count(b"HTTP/1.1 ") <= 1, answers
    assert socket.late == []
    return status_code(answers), counted.inbox.stored


def test_however_a_request_is_cut_the_same_is_answered_and_kept() -> None:
    rng = random.Random(20_261_123)

    async def all_of_them() -> set[int]:
        statuses = set()
        for number in range(COUNT):
            request, is_plain = made(rng, number)
            pieces = cut(request, [rng.randrange(20_000) for _ in range(rng.randrange(1, 6))])
            whole = await reported(CompleteRequestProtocol, [request])
            assert await reported(CompleteRequestProtocol, pieces) == whole, (request, pieces)
            assert await reported(BoundedProtocol, pieces) == whole, (request, pieces)
            if is_plain:
                assert await reported(HttpToolsProtocol, [request]) == whole, request
            statuses.add(whole[0])
        return statuses

    assert {202, 400, 401, 404, 413, 431} <= asyncio.run(all_of_them())
