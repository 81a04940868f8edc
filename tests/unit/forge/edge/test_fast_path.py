"""A whole webhook gets the same answer as any other, only sooner."""

import asyncio
import gzip
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.http.server.protocol import BoundedProtocol
from solstice_common.http.server.refusals import Field
from solstice_common.messages import Source
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.edge import fast_path
from solstice_forge.edge.answers import HttpAnswer
from solstice_forge.edge.app import AppParts, create_app
from solstice_forge.edge.fast_path import CompleteRequestProtocol
from solstice_forge.forges.samples import push_body, sign
from solstice_forge.inbox.keep_results import new
from solstice_forge.inbox.protocol import KeepResult, NewDelivery
from solstice_forge.metrics import Metrics
from tests.http_transports import Socket, connected, feed, loop_iterations
from tests.polling import wait_until

SECRET = "maple-lantern-42"
LIMIT = 5000


@dataclass
class GatedInbox:
    """Stores deliveries at once, unless it is `shut`."""

    stored: list[NewDelivery] = field(default_factory=list)
    shut: asyncio.Event | None = None

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        if self.shut is not None:
            await self.shut.wait()
        self.stored += deliveries
        return [
            StoreUnavailable("the inbox", "the disk is full")
            if one.delivery_id == "unlucky"
            else ValueError("a mistake")
            if one.delivery_id == "mistaken"
            else new(one)
            for one in deliveries
        ]

    async def backlog(self) -> int:
        return 0


@dataclass
class CountingApp:
    """The application, and the requests that came by ASGI."""

    inbox: GatedInbox = field(default_factory=GatedInbox)
    by_asgi: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app: Any = create_app(
            AppParts(
                inbox=self.inbox,
                sources={"acme": WebhookSource(name="acme", forge=FORGES[Source.FORGEJO], secrets=(SECRET,))},
                metrics=Metrics(),
                broker_health=lambda: BrokerHealth(connected=True),
                clock=lambda: 1_800_000_000.0,
                max_body_bytes=LIMIT,
            )
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.by_asgi.append(scope["path"])
        await self.app(scope, receive, send)

    @property
    def max_complete_bytes(self) -> int:
        return LIMIT

    def take_complete(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[HttpAnswer], None]
    ) -> bool:
        is_handled: bool = self.app.take_complete(name, headers, body, answer)
        return is_handled

    def is_unproven(self, name: str, headers: Sequence[Field]) -> bool:
        unproven: bool = self.app.is_unproven(name, headers)
        return unproven


def push(
    delivery_id: str = "d-1",
    *,
    path: str = "/webhooks/acme",
    method: str = "POST",
    version: str = "1.1",
    more: str = "",
    secret: str = SECRET,
    padding: int = 0,
    chunked: bool = False,
) -> bytes:
    """A whole request as it is on the wire."""
    body = push_body(
        Source.FORGEJO,
        repo_url="https://forge.example/tide-club/almanac.git",
        repo_full_name="tide-club/almanac",
        ref="refs/heads/main",
        sha="1" * 40,
    )
    body += b" " * padding
    headers = sign(Source.FORGEJO, secret, event="push", body=body, delivery_id=delivery_id, now=0)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "content-length")
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    wire = b"%x\r\n%b\r\n7\r\n%b\r\n0\r\n\r\n" % (len(body) - 7, body[:-7], body[-7:]) if chunked else body
    return f"{method} {path} HTTP/{version}\r\nHost: h\r\n{length}\r\n{lines}{more}\r\n".encode() + wire


PLAIN = push()
REQUESTS = {
    "plain": PLAIN,
    "slash": push(path="/webhooks/acme/"),
    "query": push(path="/webhooks/acme?x=1"),
    "encoded": push(path="/webhooks/%61cme"),
    "unknown-source": push(path="/webhooks/nobody"),
    "elsewhere": push(path="/elsewhere"),
    "put": push(method="PUT"),
    "forged": push(secret="wrong"),
    "chunked": push(chunked=True),
    "largest": push(padding=LIMIT - len(PLAIN.partition(b"\r\n\r\n")[2])),
    "too-large": push(padding=LIMIT),
    "http-1.0": push(version="1.0"),
    "http-1.0-open": push(version="1.0", more="Connection: keep-alive\r\n"),
    "last": push(more="Connection: close\r\n"),
    "upgrade": push(more="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    "two-names": push(more="X-Forgejo-Event: ping\r\n"),
    "not-kept": push("unlucky"),
    "our-mistake": push("mistaken"),
    "garbled": b"POST /webhooks/acme HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no-http": gzip.compress(b"hello", mtime=0),
    "probe": b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
}


async def spoken(
    kind: type[HttpToolsProtocol], pieces: Sequence[bytes]
) -> tuple[bytes, bool, list[NewDelivery]]:
    """The bytes that a connection wrote, whether it was closed, and the stored deliveries."""
    counted = CountingApp()
    protocol, socket = connected(kind, counted)
    await feed(protocol, socket, pieces)
    return b"".join(socket.written), socket.closed, counted.inbox.stored


def cut(stream: bytes, hook_owners: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(stream) for place in hook_owners} - {0}), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_same_is_answered_and_kept_either_way(name: str) -> None:
    pieces = [REQUESTS[name], PLAIN]
    answered = await spoken(CompleteRequestProtocol, pieces)
    assert answered == await spoken(BoundedProtocol, pieces)
    assert answered[0].startswith(b"HTTP/1.1 ")


@given(
    st.lists(st.sampled_from(sorted(REQUESTS)), min_size=1, max_size=4),
    st.lists(st.integers(min_value=0, max_value=20_000), max_size=6),
)
def test_however_requests_are_cut_and_joined_the_same_is_answered_and_kept(
    names: list[str], hook_owners: list[int]
) -> None:
    pieces = cut(b"".join(REQUESTS[name] for name in names), hook_owners)
    assert asyncio.run(spoken(CompleteRequestProtocol, pieces)) == asyncio.run(
        spoken(BoundedProtocol, pieces)
    )


async def test_what_is_here_whole_does_not_come_by_asgi_and_everything_else_does() -> None:
    counted = CountingApp()
    protocol, socket = connected(CompleteRequestProtocol, counted)
    await feed(protocol, socket, [PLAIN, PLAIN[:-1], PLAIN[-1:], REQUESTS["chunked"], REQUESTS["put"]])
    assert counted.by_asgi == ["/webhooks/acme"]
    assert b"".join(socket.written).count(b"HTTP/1.1 202 Accepted\r\n") == 3
    assert len(socket.written) == 4


async def test_the_rest_of_a_body_is_waited_for_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "REST_SECONDS", 0.001)
    counted = CountingApp()
    protocol, socket = connected(CompleteRequestProtocol, counted)
    protocol.data_received(PLAIN[:-1])
    assert counted.by_asgi == []
    await wait_until(lambda: counted.by_asgi)
    protocol.data_received(PLAIN[-1:] + REQUESTS["probe"])
    await loop_iterations()
    assert b"".join(socket.written).count(b"HTTP/1.1 2") == 2


@pytest.mark.parametrize("head", ["Expect: 100-continue\r\n", ""])
async def test_who_asks_before_sending_the_body_is_answered_at_once(head: str) -> None:
    counted = CountingApp()
    protocol, socket = connected(CompleteRequestProtocol, counted)
    request = push(more=head, padding=0 if head else LIMIT)
    protocol.data_received(request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    await loop_iterations()
    assert counted.by_asgi == ["/webhooks/acme"]
    (answer,) = socket.written
    assert answer.startswith(b"HTTP/1.1 100 Continue" if head else b"HTTP/1.1 413 ")


async def test_a_server_that_ends_waits_for_the_rest_of_a_body() -> None:
    protocol, socket = connected(CompleteRequestProtocol, CountingApp())
    protocol.data_received(PLAIN[:-1])
    protocol.shutdown()
    await loop_iterations()
    assert not socket.closed
    await feed(protocol, socket, [PLAIN[-1:]])
    assert b"".join(socket.written).startswith(b"HTTP/1.1 202 Accepted\r\n")
    assert socket.closed


async def test_a_body_that_breaks_off_is_dropped_and_logged_as_ever() -> None:
    counted = CountingApp()
    protocol, socket = connected(CompleteRequestProtocol, counted)
    with structlog.testing.capture_logs() as logged:
        await feed(protocol, socket, [PLAIN[:-1]])
    assert [each["event"] for each in logged][:1] == ["webhook.aborted"]
    assert counted.inbox.stored == []


async def test_an_application_that_takes_nothing_whole_is_asked_by_asgi() -> None:
    counted = CountingApp()

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await counted(scope, receive, send)

    protocol, socket = connected(CompleteRequestProtocol, plain)
    await feed(protocol, socket, [PLAIN])
    assert counted.by_asgi == ["/webhooks/acme"]
    assert len(socket.written) == 1


async def waiting() -> tuple[GatedInbox, CompleteRequestProtocol, Socket]:
    """A whole webhook has arrived and is not stored yet."""
    inbox = GatedInbox(shut=asyncio.Event())
    protocol, socket = connected(CompleteRequestProtocol, CountingApp(inbox))
    assert isinstance(protocol, CompleteRequestProtocol)
    protocol.data_received(PLAIN)
    await loop_iterations()
    assert socket.written == []
    return inbox, protocol, socket


async def open_again(inbox: GatedInbox) -> None:
    assert inbox.shut is not None
    inbox.shut.set()
    await loop_iterations()


async def test_nothing_is_answered_before_it_is_kept() -> None:
    inbox, _, socket = await waiting()
    await open_again(inbox)
    assert len(inbox.stored) == 1
    assert len(socket.written) == 1


async def test_a_disconnected_sender_gets_no_answer_and_the_webhook_is_stored() -> None:
    inbox, protocol, socket = await waiting()
    socket.close()
    protocol.connection_lost(ConnectionResetError())
    await open_again(inbox)
    assert len(inbox.stored) == 1
    assert socket.written == socket.late == []


async def test_a_server_that_ends_answers_first_and_closes_then() -> None:
    inbox, protocol, socket = await waiting()
    protocol.shutdown()
    await loop_iterations()
    assert not socket.closed
    await open_again(inbox)
    (answer,) = socket.written
    assert answer.startswith(b"HTTP/1.1 202 Accepted\r\n")
    assert b"\r\nconnection: close\r\n" in answer
    assert socket.closed


async def test_what_comes_behind_waits_for_its_turn() -> None:
    inbox, protocol, socket = await waiting()
    protocol.data_received(REQUESTS["probe"] + REQUESTS["forged"])
    await loop_iterations()
    assert socket.written == []
    await open_again(inbox)
    assert [answer[:12] for answer in b"".join(socket.written).split(b"HTTP/1.1 ")[1:]] == [
        b"202 Accepted",
        b"200 OK\r\ncont",
        b"401 Unauthor",
    ]


async def test_an_idle_connection_is_closed_in_the_end_and_a_waiting_one_is_not() -> None:
    inbox, protocol, _ = await waiting()
    assert protocol.timeout_keep_alive_task is None
    await open_again(inbox)
    assert protocol.timeout_keep_alive_task is not None
    protocol.data_received(PLAIN[:10])
    assert protocol.timeout_keep_alive_task is None


async def test_a_client_that_reads_no_answers_is_given_time() -> None:
    counted = CountingApp()
    protocol, socket = connected(CompleteRequestProtocol, counted)
    protocol.pause_writing()
    protocol.data_received(PLAIN)
    await loop_iterations()
    assert counted.by_asgi == ["/webhooks/acme"]
    assert socket.written == []
    protocol.resume_writing()
    await loop_iterations()
    assert len(socket.written) == 1
