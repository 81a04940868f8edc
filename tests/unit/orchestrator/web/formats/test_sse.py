"""The answer of a stream of events begins after its first check."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from solstice_orchestrator.web.formats.sse import Event, EventStream


async def sent_by(stream: EventStream, sent: list[Message]) -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)


async def test_the_head_of_an_answer_comes_after_the_first_look() -> None:
    """A client with the head gets every change from then on."""
    waited, sent = asyncio.Event(), list[Message]()

    async def events() -> AsyncGenerator[Event | None, None]:
        await waited.wait()
        yield None
        yield Event(name="changed", data={})

    sending = asyncio.create_task(sent_by(EventStream(events()), sent))
    for _ in range(10):
        await asyncio.sleep(0)
    assert sent == []
    waited.set()
    await sending
    assert sent[0]["type"] == "http.response.start"
    body = b"".join(message.get("body", b"") for message in sent)
    assert body == b"retry: 2000\n\nevent: changed\ndata: {}\n\n"


async def test_a_stream_without_events_is_an_empty_answer() -> None:
    async def events() -> AsyncGenerator[Event | None, None]:
        return
        yield None

    sent = list[Message]()
    await sent_by(EventStream(events()), sent)
    assert b"".join(message.get("body", b"") for message in sent) == b"retry: 2000\n\n"
