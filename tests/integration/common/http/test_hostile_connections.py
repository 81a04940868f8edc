"""Services bound the resources that callers can take: real processes, raw sockets."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.fences import asks_for_inside
from tests.integration.forge.pushes import SECRET
from tests.raw_http import (
    MIB,
    address,
    connections,
    exchange,
    peak_mib,
    read_to_end,
    resident_mib,
    send_genuine,
    send_some,
    status_code,
    webhook_bytes,
)
from tests.servers.forge_integration import FRESH_FORGE, ForgeProcess, forge_integration
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, OrchestratorProcess, SharedFiles, orchestrator

SERVICES = ["forge-integration", "orchestrator"]
CHUNKED = b"POST /webhooks/forgejo HTTP/1.1\r\nHost: h\r\nX-Forgejo-Signature: aa\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE_MIB = 220
"""More than a service at rest with everything that callers may add; attacks brought it to a gigabyte before."""

Service = ForgeProcess | OrchestratorProcess


@contextmanager
def started(name: str, directory: Path, **settings: str) -> Iterator[Service]:
    shared_files = SharedFiles(directory=directory)
    chosen = {"HTTP_HEAD_SECONDS": "1", "HTTP_SILENCE_SECONDS": "2", **settings}
    if name == "orchestrator":
        with orchestrator(shared_files, start=FRESH_ORCHESTRATOR, **chosen) as running:
            yield running
    else:
        with forge_integration(
            shared_files, start=FRESH_FORGE, FORGEJO_WEBHOOK_SECRET=SECRET, **chosen
        ) as taking:
            yield taking


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Service]]:
    """A running service by its name, which withstands one attack after the other."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(started(name, tmp_path_factory.mktemp(name))))


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest, services: Callable[[str], Service]) -> Iterator[Service]:
    running = services(request.param)
    yield running
    assert not [event for event in running.events if "Traceback" in str(event)]


@pytest.fixture
def forge(services: Callable[[str], Service]) -> Iterator[Service]:
    running = services("forge-integration")
    yield running
    assert not [event for event in running.events if "Traceback" in str(event)]


HEADS = {
    "45-MiB-of-fields": (431, [b"GET / HTTP/1.1\r\n", *[b"a: b\r\n" * 10_000] * 750]),
    "101-fields": (431, [b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 101, b"\r\n"]),
    "one-endless-field": (431, [b"GET / HTTP/1.1\r\na: ", *[b"b" * 65536] * 300]),
    "no-line-end-at-all": (414, [b"GET /", *[b"b" * 65536] * 300]),
    "long-address": (414, [b"GET /" + b"b" * 9000 + b" HTTP/1.1\r\n\r\n"]),
    "line-ends-alone": (431, [b"\r\n" * 32768] * 300),
    "trailers": (431, [CHUNKED, b"1\r\nx\r\n0\r\n", *[b"a: b\r\n" * 10_000] * 300]),
    "one-endless-trailer": (431, [CHUNKED, b"1\r\nx\r\n0\r\na: ", *[b"b" * 65536] * 300]),
    "chunk-extensions": (431, [CHUNKED, b"1;", *[b"b" * 65536] * 300]),
    "tiny-chunks": (400, [CHUNKED, *[b"1\r\nx\r\n" * 10_000] * 20]),
}


# The orchestrator answers these, a POST to a page that is none, before any trailer or chunk comes.
CASES = [
    (kind, name) for kind in SERVICES for name in HEADS if kind == SERVICES[0] or HEADS[name][1][0] != CHUNKED
]


@asks_for_inside("uvicorn")
@pytest.mark.parametrize(("service", "name"), CASES, indirect=["service"])
def test_heads_are_bounded_and_the_refusal_is_read(service: Service, name: str) -> None:
    status, pieces = HEADS[name]
    answer = exchange(service.url, pieces)
    assert status_code(answer) == status, answer[:300]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer
    assert resident_mib(service.process.pid) < LARGE_MIB


@asks_for_inside("uvicorn")
def test_a_head_has_one_deadline_and_silence_another(service: Service) -> None:
    began = time.monotonic()
    with socket.create_connection(address(service.url), timeout=30) as silent:
        with connections(service.url, 1) as (dripping,):
            # A valid, incomplete head: a wrong one would be refused at once, under any deadline.
            send_some(dripping, b"GET / HTTP/1.1\r\na: ")
            ended = -1.0
            while time.monotonic() - began < 20 and ended < 0:
                if send_some(dripping, b"b") < 0:
                    ended = time.monotonic() - began
                time.sleep(0.1)
            dripping.setblocking(True)
            assert status_code(read_to_end(dripping)) == 408
        assert 0.9 < ended < 15
        assert read_to_end(silent) == b""
        assert 1.9 < time.monotonic() - began < 20


@asks_for_inside("uvicorn")
def test_a_body_that_stops_and_a_client_that_reads_nothing_are_ended(tmp_path: Path) -> None:
    # A service of its own, whose peak is of this.
    with started("forge-integration", tmp_path) as forge:
        request = webhook_bytes(1)
        answer = exchange(forge.url, [request[:-5]])
        assert status_code(answer) == 408
        head = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
        with connections(forge.url, 1) as (connection,):
            # It asks as long as it is taken, and reads nothing.
            deadline = time.monotonic() + 60
            while (sent := send_some(connection, head * 8)) >= 0 and time.monotonic() < deadline:
                time.sleep(0 if sent else 0.1)
            assert sent < 0
        assert peak_mib(forge.process.pid) < LARGE_MIB
        assert not [event for event in forge.events if "Traceback" in str(event)]


@asks_for_inside("uvicorn")
def test_a_webhook_is_answered_while_strangers_hold_every_connection(tmp_path: Path) -> None:
    with (
        started(
            "forge-integration",
            tmp_path,
            HTTP_CONNECTIONS="64",
            HTTP_HEAD_SECONDS="300",
            HTTP_SILENCE_SECONDS="300",
        ) as forge,
        connections(forge.url, 300) as strangers,
    ):
        for number, each in enumerate(strangers):
            send_some(each, [b"", b"GET / HT", webhook_bytes(0)[:-1]][number % 3])
        for number in range(1, 6):
            status, seconds = send_genuine(forge.url, number)
            assert status == 202
            assert seconds < 5


@pytest.mark.parametrize("more", ["", "Expect: 100-continue\r\n"])
def test_an_unsigned_body_is_refused_before_it_is_read(forge: Service, more: str) -> None:
    head = f"POST /webhooks/forgejo HTTP/1.1\r\nHost: h\r\nContent-Length: {20 * MIB}\r\n{more}\r\n".encode()
    # The answer comes without a byte of the body, and the sender still reads it.
    assert exchange(forge.url, [head]).startswith(b"HTTP/1.1 401 ")
    answer = exchange(forge.url, [head, *[b"x" * MIB] * 20])
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"bad_signature" in answer


def test_bodies_under_way_share_a_budget_and_small_ones_always_fit(tmp_path: Path) -> None:
    with started("forge-integration", tmp_path, HTTP_SILENCE_SECONDS="60") as forge:
        head = (
            f"POST /webhooks/forgejo HTTP/1.1\r\nHost: h\r\nX-Forgejo-Signature: aa\r\n"
            f"Content-Length: {25 * MIB}\r\nContent-Type: application/json\r\n\r\n"
        ).encode()
        with connections(forge.url, 80) as strangers:
            for each in strangers:
                send_some(each, head)
            left, piece = dict.fromkeys(strangers, 25 * MIB - 1), b"x" * 65536
            slowest, number, deadline = 0.0, 0, time.monotonic() + 15
            while left and time.monotonic() < deadline:
                for each in list(left):
                    sent = send_some(each, piece[: left[each]])
                    left[each] -= max(sent, 0)
                    if sent < 0 or left[each] == 0:
                        del left[each]
                number += 1
                if number % 20 == 0:
                    status, seconds = send_genuine(forge.url, number)
                    assert status in {202, 200}
                    slowest = max(slowest, seconds)
        assert slowest < 5
        assert peak_mib(forge.process.pid) < 300
        assert send_genuine(forge.url, 100_000)[0] == 202


def test_a_trailer_is_never_a_header_however_it_is_cut(forge: Service) -> None:
    whole = webhook_bytes(7)
    head, _, body = whole.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    proof = [line for line in lines if b"signature" in line.lower()]
    bare = b"\r\n".join([line for line in lines if line not in proof] + [b"Transfer-Encoding: chunked"])
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    signed_late = bare + b"\r\n\r\n" + chunk + b"\r\n".join(proof) + b"\r\n\r\n"
    turned = (
        b"\r\n".join([*lines, b"Transfer-Encoding: chunked"])
        + b"\r\n\r\n"
        + chunk
        + b"X-Forgejo-Event: ping\r\n\r\n"
    )
    for request, status, reason in ((signed_late, 401, b"bad_signature"), (turned, 202, b'"accepted"')):
        for pieces in ([request], [request[:40], request[40:]], [request[:-30], request[-30:]]):
            answer = exchange(forge.url, pieces)
            assert status_code(answer) in {status, 200 if status == 202 else status}, answer
            assert reason in answer or b'"duplicate"' in answer


@pytest.mark.parametrize(
    "twice",
    [
        "X-Forgejo-Signature: aa",
        "X-Forgejo-Event: ping",
        "X-Forgejo-Delivery: d",
        "Host: h",
        "Content-Type: a/b",
    ],
)
def test_a_security_header_that_comes_twice_is_refused(forge: Service, twice: str) -> None:
    answer = exchange(forge.url, [webhook_bytes(8, more=f"{twice}\r\n")])
    assert status_code(answer) == 400
