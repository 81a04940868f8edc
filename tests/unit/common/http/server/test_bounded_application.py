"""The bounds that an application enforces when the server's protocol does not."""

import asyncio
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from solstice_common.http.server.application import BoundedApplication
from solstice_common.http.server.bounds import LINGER_BYTES, Bounds

BUDGET: Final = 1000
PIECE: Final = 64 * 1024
ANSWER: Final = b"answered"


class Exchange:
    """A request on the server's side: pieces of its body, messages of its answer."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.answer: list[Message] = []

    def arrives(self, size: int, *, is_last: bool = False) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": not is_last})

    async def run(self, app: BoundedApplication, path: str) -> None:
        headers = [(b"content-length", b"26214400")]
        scope = {"type": "http", "path": path, "raw_path": b"/", "query_string": b"", "headers": headers}
        await app(scope, self.pieces.get, self._send)

    async def _send(self, message: Message) -> None:
        self.answer.append(message)

    @property
    def status(self) -> int:
        return int(self.answer[0]["status"])

    @property
    def closes(self) -> bool:
        return (b"connection", b"close") in self.answer[0]["headers"]

    @property
    def is_ended(self) -> bool:
        return bool(self.answer) and not self.answer[-1].get("more_body", False)


class Reader:
    """An application that reads a body; at `/slow` it works between two pieces."""

    def __init__(self) -> None:
        self.works = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/early":
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                if scope["path"] == "/slow":
                    self.works.set()
                    await self.may_go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": ANSWER})


async def test_a_body_given_up_while_its_application_works_fails_no_other_request() -> None:
    reader, reasons = Reader(), list[str]()
    app = BoundedApplication(reader, Bounds(body_bytes=BUDGET), refused=reasons.append)
    large, small = Exchange(), Exchange()
    large.arrives(BUDGET)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(large.run(app, "/slow"))
        await reader.works.wait()
        small.arrives(1, is_last=True)
        await small.run(app, "/")
        large.arrives(1)
        reader.may_go_on.set()
        large.pieces.put_nowait({"type": "http.disconnect"})
    assert small.status == 200
    assert large.status == 503
    assert reasons == ["many_bodies"]


async def test_an_answer_before_the_end_of_a_body_closes_the_connection() -> None:
    app = BoundedApplication(Reader(), Bounds(), refused=print)
    sends_on = Exchange()
    for _ in range(100):
        sends_on.arrives(PIECE)
    await sends_on.run(app, "/early")
    assert sends_on.closes
    assert sends_on.is_ended
    assert b"".join(message.get("body", b"") for message in sends_on.answer) == ANSWER
    # It reads a little more, so that the client can read the answer.
    assert 100 - sends_on.pieces.qsize() == LINGER_BYTES // PIECE


async def test_a_client_that_falls_silent_after_an_early_answer_is_closed() -> None:
    silent = Exchange()
    async with asyncio.timeout(20):
        await silent.run(BoundedApplication(Reader(), Bounds(), refused=print), "/early")
    assert silent.is_ended


async def test_an_answer_to_a_whole_body_leaves_the_connection_open() -> None:
    whole = Exchange()
    whole.arrives(1, is_last=True)
    await whole.run(BoundedApplication(Reader(), Bounds(), refused=print), "/")
    assert not whole.closes
    assert whole.is_ended
