"""forge-integration on uvicorn's public interface: what still holds, and what is logged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from solstice_common.runtime.public_interfaces import VARIABLE
from tests.integration.common.http.test_hostile_connections import HEADS, LARGE_MIB
from tests.integration.forge.pushes import SECRET
from tests.raw_http import (
    MIB,
    connections,
    exchange,
    peak_mib,
    read_to_end,
    send_genuine,
    send_some,
    status_code,
    webhook_bytes,
)
from tests.servers.forge_integration import START, ForgeProcess, forge_integration
from tests.servers.orchestrator import SharedFiles

WITHOUT_INSIDE = """
import sys
sys.modules["uvicorn.protocols.http.httptools_impl"] = None  # importing it fails
"""


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[ForgeProcess]:
    settings = {VARIABLE: "uvicorn", "HTTP_SILENCE_SECONDS": "2", "FORGEJO_WEBHOOK_SECRET": SECRET}
    with forge_integration(
        SharedFiles(directory=tmp_path), start=WITHOUT_INSIDE + START, **settings
    ) as running:
        yield running
        assert not [event for event in running.events if "Traceback" in str(event)]


def test_what_is_left_open_is_reported(forge: ForgeProcess) -> None:
    assert "time for heads" in forge.logged("http.unbounded")["open"]


def test_heads_and_trailers_are_bounded(forge: ForgeProcess) -> None:
    for name in (
        "45-MiB-of-fields",
        "one-endless-field",
        "trailers",
        "one-endless-trailer",
        "chunk-extensions",
    ):
        answer = exchange(forge.url, HEADS[name][1])
        assert status_code(answer) == 400, name
        assert b"Invalid HTTP request" in answer
    assert status_code(exchange(forge.url, [webhook_bytes(1, more="a: b\r\n" * 101)])) == 431
    assert status_code(exchange(forge.url, [webhook_bytes(1, path="/" + "b" * 9000)])) == 414
    assert peak_mib(forge.process.pid) < LARGE_MIB
    assert send_genuine(forge.url, 1)[0] == 202


@pytest.mark.parametrize("twice", ["X-Forgejo-Signature: aa", "X-Forgejo-Event: ping"])
def test_a_security_header_that_comes_twice_is_refused(forge: ForgeProcess, twice: str) -> None:
    answer = exchange(forge.url, [webhook_bytes(8, more=f"{twice}\r\n")])
    assert status_code(answer) == 400
    assert b"came twice" in answer


def test_a_body_that_falls_silent_is_ended(forge: ForgeProcess) -> None:
    assert status_code(exchange(forge.url, [webhook_bytes(1)[:-5]])) == 408


def test_bodies_under_way_share_a_budget(forge: ForgeProcess) -> None:
    head = (
        f"POST /webhooks/forgejo HTTP/1.1\r\nHost: h\r\nX-Forgejo-Signature: aa\r\n"
        f"Content-Length: {20 * MIB}\r\nContent-Type: application/json\r\n\r\n"
    ).encode()
    with connections(forge.url, 40) as strangers:
        left, piece = dict.fromkeys(strangers, 20 * MIB - 1), b"x" * 65536
        statuses: set[int] = set()
        for each in strangers:
            send_some(each, head)
        while 503 not in statuses:
            assert left, statuses
            for each in list(left):
                sent = send_some(each, piece[: left[each]])
                left[each] -= max(sent, 0)
                if sent < 0 or left[each] == 0:
                    del left[each]
                    each.settimeout(5)
                    statuses.add(status_code(read_to_end(each)))
        assert send_genuine(forge.url, 1)[0] == 202
    assert peak_mib(forge.process.pid) < LARGE_MIB
