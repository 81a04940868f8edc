"""The report about a server's durability, with advice for the operator."""

import asyncio

import pytest

from solstice_common.broker.capabilities import Certainty
from solstice_common.broker.jetstream.jetstream_durability import DurabilityProbe, lacking, read_varz
from tests.servers.stream_server import stream_server

MODERN = (2, 15)


def test_only_a_server_that_syncs_always_lacks_nothing() -> None:
    assert lacking(MODERN, syncs_always=True) is None
    assert "sync_interval: always" in (lacking(MODERN, syncs_always=False) or "")
    unknown = lacking(MODERN, syncs_always=None) or ""
    assert unknown.startswith("durability unknown")
    assert "NATS_SYNC_ALWAYS" in unknown


def test_server_before_2_10_is_never_durable() -> None:
    assert lacking((2, 10), syncs_always=True) is None
    assert "2.9 has no sync_interval" in (lacking((2, 9), syncs_always=True) or "")


@pytest.mark.parametrize(
    ("document", "seen"),
    [
        ({"jetstream": {"config": {"sync_always": True}}}, True),
        ({"jetstream": {"config": {"sync_interval": 120_000_000_000}}}, False),
        ({"jetstream": {}}, "says nothing of JetStream"),
        ({}, "says nothing of JetStream"),
        ([], "says nothing of JetStream"),
        ({"jetstream": {"config": 7}}, "no configuration"),
    ],
    ids=str,
)
def test_monitoring_port_shows_it_by_one_field(document: object, seen: bool | str) -> None:
    found = read_varz(document)
    assert found is seen if isinstance(seen, bool) else seen in str(found)


async def test_operators_word_counts_without_a_monitoring_port_alone() -> None:
    stated = DurabilityProbe("", sync_always=True)
    assert (stated.degraded(MODERN), stated.certainty(MODERN)) == (None, Certainty.YES)
    silent = DurabilityProbe("http://127.0.0.1:1", sync_always=True)
    await silent.probe()
    assert "NATS_MONITOR_URL does not say" in (silent.degraded(MODERN) or "")
    assert silent.certainty(MODERN) is Certainty.UNKNOWN
    assert DurabilityProbe("", sync_always=True).certainty((2, 9)) is Certainty.NO


async def test_what_the_monitoring_port_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    requests, body = list[bytes](), b'{"jetstream": {"config": {"sync_always": true}}}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with stream_server(answer) as port:
        probe = DurabilityProbe(f"http://127.0.0.1:{port}/", sync_always=False)
        assert "it was not asked yet" in (probe.degraded(MODERN) or "")
        await probe.probe()
    assert requests == [b"GET /varz HTTP/1.1\r\n"]
    assert (probe.degraded(MODERN), probe.certainty(MODERN)) == (None, Certainty.YES)


async def test_the_reason_of_a_useless_monitoring_port_is_reported() -> None:
    probe = DurabilityProbe("http://127.0.0.1:1", sync_always=False)
    await probe.probe()
    assert "onnect" in (probe.degraded(MODERN) or "")
    assert "ConnectError" not in (probe.degraded(MODERN) or "")
