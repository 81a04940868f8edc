"""The service over real HTTP, with real SQLite and the embedded broker."""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from solstice_common.broker import open_broker
from solstice_forge.service import serve
from solstice_forge.settings import ForgeSettings
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import number_of, push, received, signed
from tests.webhooks.deliveries import deliveries


@pytest.fixture
def settings(make_settings: MakeSettings) -> ForgeSettings:
    return make_settings(forge_max_body_bytes=64 * 1024)


@pytest.fixture
async def client(settings: ForgeSettings, running: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with running(settings) as opened:
        yield opened


def rows(settings: ForgeSettings) -> int:
    with closing(sqlite3.connect(settings.forge_inbox_url.removeprefix("sqlite:///"))) as connection:
        return int(connection.execute("SELECT count(*) FROM deliveries").fetchone()[0])


async def send(client: httpx2.AsyncClient, number: int, **more: str) -> httpx2.Response:
    body, headers = push(number, **more)
    return await client.post("/webhooks/forgejo", content=body, headers=headers)


async def test_push_is_kept_published_and_arrives(
    client: httpx2.AsyncClient, settings: ForgeSettings
) -> None:
    answer = await send(client, 7)
    assert answer.status_code == 202
    assert answer.headers["content-type"] == "application/json"
    result = answer.json()
    assert result == {
        "delivery_id": "delivery-7",
        "decision": "accepted",
        "reason": "push",
        "request_ids": result["request_ids"],
    }
    async with open_broker(settings.amqp_url, name="test") as broker:
        (request,) = await received(broker, settings, 1)
    assert [request.request_id] == result["request_ids"]
    assert (number_of(request), request.delivery_id, request.trusted) == (7, "delivery-7", True)


@pytest.mark.parametrize(
    "name",
    [
        "forgejo/push-form",
        "forgejo/pull-request-opened-fork",
        "gitea/push-annotated-tag",
        "gitea/create-branch",
        "github/push-form",
        "github/ping",
        "gitlab/merge-request-open",
        "gitlab/push-branch-signed",
    ],
)
async def test_each_kind_of_delivery_gets_its_answer(
    name: str, make_settings: MakeSettings, running: Running
) -> None:
    one = deliveries()[name]
    setting = "gitlab_signing_token" if one.secret.startswith("whsec_") else f"{one.origin}_webhook_secret"
    async with running(make_settings(**{setting: one.secret})) as client:
        answer = await client.post(f"/webhooks/{one.origin}", content=one.body, headers=dict(one.headers))
        if "webhook-signature" in one.headers:
            # Signed long ago, and this service has the real clock; the unit tests show it inside the window.
            assert (answer.status_code, answer.json()["reason"]) == (401, "bad_signature")
            return
        assert answer.json()["decision"] == one.expected["decision"]
        assert answer.json()["reason"] == one.expected["reason"]
        assert answer.status_code == (202 if one.expected["decision"] == "accepted" else 200)
        assert len(answer.json()["request_ids"]) == (one.expected["decision"] == "accepted")


async def test_fifty_concurrent_copies_are_one_run(
    client: httpx2.AsyncClient, settings: ForgeSettings
) -> None:
    answers = await asyncio.gather(*(send(client, 1) for _ in range(50)))
    assert Counter(one.json()["decision"] for one in answers) == {"accepted": 1, "duplicate": 49}
    assert Counter(one.status_code for one in answers) == {202: 1, 200: 49}
    assert len({tuple(one.json()["request_ids"]) for one in answers}) == 1
    assert rows(settings) == 1


async def test_a_webhook_in_one_piece_and_in_several_is_one_event(client: httpx2.AsyncClient) -> None:
    body, headers = push(3)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /webhooks/forgejo HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode()
    )
    url = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    decisions = []
    async with asyncio.timeout(30):
        for pieces in ([head + body], [head, body[:9], body[9:]], [head + body]):
            for number, piece in enumerate(pieces):
                if number:
                    # The service has read the earlier bytes once it answers another client.
                    await client.get("/healthz")
                writer.write(piece)
                await writer.drain()
            status = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", status)
            assert length is not None
            assert b"\r\ndate: " in status
            decisions.append((status[9:12], json.loads(await reader.readexactly(int(length[1])))["decision"]))
        writer.close()
        await writer.wait_closed()
    assert decisions == [(b"202", "accepted"), (b"200", "duplicate"), (b"200", "duplicate")]


async def test_same_push_seen_by_another_hook_is_one_run(client: httpx2.AsyncClient) -> None:
    first = await send(client, 1, delivery_id="of the repository")
    second = await send(client, 1, delivery_id="of the organisation")
    assert second.status_code == 200
    assert (second.json()["decision"], second.json()["reason"]) == ("duplicate", "duplicate_content")
    assert second.json()["request_ids"] == first.json()["request_ids"]


async def test_slash_at_the_end_is_no_other_address(client: httpx2.AsyncClient) -> None:
    body, headers = push(1)
    assert (await client.post("/webhooks/forgejo/", content=body, headers=headers)).status_code == 202


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_other_method_is_405(client: httpx2.AsyncClient, method: str) -> None:
    answer = await client.request(method, "/webhooks/forgejo?payload=%7B%7D")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert "POST" in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "part"),
    [("/webhooks/sourcehut", "FORGE_CONFIG"), ("/webhooks/", "/webhooks/SOURCE"), ("/nowhere", "SOURCE")],
)
async def test_unknown_address_is_404_and_says_what_there_is(
    client: httpx2.AsyncClient, path: str, part: str
) -> None:
    body, headers = push(1)
    answer = await client.post(path, content=body, headers=headers)
    assert answer.status_code == 404
    assert part in answer.json()["error"]


async def test_source_without_a_secret_is_404_and_says_what_to_set(
    make_settings: MakeSettings, running: Running
) -> None:
    body, headers = push(1)
    async with running(make_settings(forgejo_webhook_secret="")) as client:
        answer = await client.post("/webhooks/forgejo", content=body, headers=headers)
        assert answer.status_code == 404
        assert "FORGEJO_WEBHOOK_SECRET" in answer.json()["error"]


async def test_what_is_refused_writes_nothing(client: httpx2.AsyncClient, settings: ForgeSettings) -> None:
    body, headers = push(1)
    signature = headers["x-forgejo-signature"]
    cases = {
        401: {**headers, "x-forgejo-signature": signature[:-1] + ("0" if signature[-1] != "0" else "1")},
        415: {**headers, "content-type": "text/plain"},
        400: {name: value for name, value in headers.items() if name != "x-forgejo-event"},
    }
    for status, given in cases.items():
        answer = await client.post("/webhooks/forgejo", content=body, headers=given)
        assert (answer.status_code, bool(answer.json()["error"])) == (status, True)
    answer = await client.post("/webhooks/forgejo", content=body + b" ", headers=headers)
    assert answer.status_code == 401
    assert rows(settings) == 0


async def test_unreadable_body_with_a_good_signature_is_400(client: httpx2.AsyncClient) -> None:
    body, _ = push(1)
    broken = body[:-1]
    headers = signed(broken)
    answer = await client.post("/webhooks/forgejo", content=broken, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (400, "malformed")


async def test_announced_size_over_the_limit_is_413_without_reading(client: httpx2.AsyncClient) -> None:
    _, headers = push(1)
    status, document = await raw(client, headers, b"content-length: 99999999\r\n\r\n")
    assert (status, document["reason"]) == (413, "too_large")


async def test_unannounced_size_over_the_limit_is_413_while_it_arrives(client: httpx2.AsyncClient) -> None:
    """The sender never ends its body, and is answered nevertheless."""
    _, headers = push(1)
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    status, document = await raw(client, headers, b"transfer-encoding: chunked\r\n\r\n" + chunk * 3)
    assert (status, document["reason"]) == (413, "too_large")


async def test_largest_allowed_body_is_taken(client: httpx2.AsyncClient, settings: ForgeSettings) -> None:
    body, _ = push(1)
    body = body.ljust(settings.forge_max_body_bytes, b" ")
    headers = signed(body)
    assert (await client.post("/webhooks/forgejo", content=body, headers=headers)).status_code == 202


@pytest.mark.parametrize(
    "first_line",
    [
        b"POST /webhooks/%00 HTTP/1.1",
        b"POST /webhooks/%ff%fe HTTP/1.1",
        b"POST /webhooks/..%2f..%2fetc HTTP/1.1",
        b"POST /webhooks/forgejo?%zz HTTP/1.1",
        b"POST //webhooks//forgejo HTTP/1.1",
        b"POST /webhooks/" + b"x" * 5000 + b" HTTP/1.1",
        b"BREW /webhooks/forgejo HTTP/1.1",
        b"POST * HTTP/1.1",
        b"\x16\x03\x01",
    ],
    ids=["nul", "not-utf8", "dots", "query", "slashes", "long", "method", "star", "tls"],
)
async def test_odd_request_is_a_mistake_of_the_sender(client: httpx2.AsyncClient, first_line: bytes) -> None:
    reader, writer = await connect(client)
    signature = b"x-forgejo-signature: \xff\xfe\r\n"
    writer.write(
        first_line + b"\r\nhost: forge\r\nconnection: close\r\ncontent-length: 2\r\n" + signature + b"\r\n{}"
    )
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert 400 <= int(answer.split()[1]) < 500
    assert (await send(client, 1)).status_code == 202


async def test_sender_that_goes_away_leaves_nothing_behind(
    client: httpx2.AsyncClient, settings: ForgeSettings
) -> None:
    _, headers = push(1)
    reader, writer = await connect(client)
    writer.write(head(headers) + b"content-length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    del reader
    assert (await send(client, 2)).status_code == 202
    assert rows(settings) == 1


async def test_inbox_that_cannot_be_written_is_503_with_retry_after_and_recovers(
    make_settings: MakeSettings, running: Running, tmp_path: Path
) -> None:
    async with running(make_settings()) as client:
        with closing(sqlite3.connect(tmp_path / "inbox.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = await send(client, 1)
            assert (answer.status_code, answer.json()["reason"]) == (503, "inbox_unavailable")
            assert int(answer.headers["retry-after"]) > 0
            other.execute("ROLLBACK")
        assert (await send(client, 1)).status_code == 202


async def test_alive_and_ready(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {
        "status": "alive",
        "broker": "embedded",
        "broker_host": "",
    }
    ready = await client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {"status": "ready", "missing": {}, "notices": {}, "backlog": 0}


async def test_without_a_broker_it_is_alive_and_not_ready_and_takes_webhooks(
    make_settings: MakeSettings, running: Running
) -> None:
    async with running(make_settings(amqp_url="amqp://127.0.0.1:9/%2f", forge_grace_seconds=1)) as client:
        assert (await send(client, 1)).status_code == 202
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert list(ready.json()["missing"]) == ["broker"]
        assert ready.json()["backlog"] == 1


async def test_without_any_source_it_is_not_ready(make_settings: MakeSettings, running: Running) -> None:
    none = {f"{name}_webhook_secret": "" for name in ("github", "forgejo", "gitea", "gitlab")}
    async with running(make_settings(**none)) as client:
        assert list((await client.get("/readyz")).json()["missing"]) == ["sources"]


async def test_metrics_count_what_happened(client: httpx2.AsyncClient, settings: ForgeSettings) -> None:
    await send(client, 1)
    await send(client, 1)
    await client.post("/webhooks/nobody-knows", content=b"{}")
    async with open_broker(settings.amqp_url, name="test") as broker:
        await received(broker, settings, 1)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'solstice_forge_deliveries_total{decision="accepted",reason="push",source="forgejo"} 1.0',
        'solstice_forge_deliveries_total{decision="duplicate",reason="duplicate_delivery",source="forgejo"} 1.0',
        'solstice_forge_deliveries_total{decision="refused",reason="unknown_source",source="unknown"} 1.0',
        "solstice_forge_broker_connected 1.0",
    ):
        assert line in answer.text
    assert "nobody-knows" not in answer.text
    assert re.search(r'solstice_forge_publishes_total\{status="confirmed"\} 1\.0', answer.text)


async def test_what_was_kept_without_a_broker_is_published_in_order_by_the_next_start(
    make_settings: MakeSettings, running: Running
) -> None:
    away = make_settings(amqp_url="amqp://127.0.0.1:9/%2f", forge_grace_seconds=1)
    async with running(away) as client:
        for number in range(1, 21):
            assert (await send(client, number)).status_code == 202
    back = make_settings()
    async with running(back), open_broker(back.amqp_url, name="test") as broker:
        requests = await received(broker, back, 20)
    assert [number_of(one) for one in requests] == list(range(1, 21))


async def test_cancelled_service_lets_go_of_everything(make_settings: MakeSettings) -> None:
    """As when another task fails: the address is free again, and stored rows stay."""
    where: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = make_settings()
    task = asyncio.create_task(
        serve(settings, stop=asyncio.Event(), listening=lambda _, port: where.set_result(port))
    )
    port = await where
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await send(client, 1)).status_code == 202
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert rows(settings) == 1


async def test_what_was_taken_is_published_before_the_end(
    make_settings: MakeSettings, running: Running
) -> None:
    settings = make_settings()
    async with running(settings) as client:
        await asyncio.gather(*(send(client, number) for number in range(1, 301)))
    async with open_broker(settings.amqp_url, name="test") as broker:
        requests = await received(broker, settings, 300)
    assert sorted(number_of(one) for one in requests) == list(range(1, 301))


def head(headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /webhooks/forgejo HTTP/1.1\r\nhost: forge\r\n{lines}".encode()


async def connect(client: httpx2.AsyncClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(str(client.base_url))
    return await asyncio.open_connection(address.hostname, address.port)


async def raw(client: httpx2.AsyncClient, headers: dict[str, str], rest: bytes) -> tuple[int, dict[str, str]]:
    """Write the head and `rest`, and read until the server closes the connection."""
    reader, writer = await connect(client)
    writer.write(head(headers) + rest)
    try:
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    top, _, body = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(body)
