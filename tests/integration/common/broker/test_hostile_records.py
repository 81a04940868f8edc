"""Hostile entries of Redis and messages of NATS cost themselves alone."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol, cast

import httpx2
import pytest

from solstice_common.broker import Broker, open_broker, open_dead_letter_queues
from solstice_common.broker.dead_letters.dead_letter_operations import browse, drop
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.jetstream.jetstream_broker import JetStreamBroker
from solstice_common.broker.receiving.receiver import Receiver
from solstice_common.broker.redis_streams.stream_entries import dead_meta
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, full_topology, jobs_route
from solstice_forge.metrics import Metrics as ForgeMetrics
from solstice_forge.statuses.intake import StatusIntake
from solstice_forge.statuses.protocol import StatusStore
from tests.builders import job_request
from tests.fences import asks_for_inside
from tests.recording_handler import GOOD, RecordingHandler
from tests.servers.nats_server import NatsServer
from tests.servers.orchestrator import START, SharedFiles, orchestrator
from tests.servers.redis_server import RedisServer
from tests.servers.versions import REDIS
from tests.traffic import WAIT_SECONDS, drain

BAD: Final = b"not json"
NAMES: Final = ("amqp_url", "amqp_exchange", "amqp_queue", "amqp_dlx", "amqp_dlq")
BEGIN: Final = b"NATS/1.0\r\n"
PINGS: Final = f"""
from solstice_common.broker.jetstream import nats_connection
nats_connection.PING_SECONDS = 1
{START}
"""
"""An orchestrator that notices sooner when nats-py no longer reads."""


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


METAS: Final = {
    "header nested 300 deep": f'{{"headers": {{"k": {nested(300)}}}}}',
    "header nested 900 deep": f'{{"headers": {{"k": {nested(900)}}}}}',
    "header nested 30,000 deep": f'{{"headers": {{"k": {nested(30_000)}}}}}',
    "property nested 300 deep": f'{{"k": {nested(300)}}}',
    "property nested 900 deep": f'{{"k": {nested(900)}}}',
    "nested 30,000 deep": nested(30_000),
    "large property": json.dumps({"k": "x" * 65_000}),
    "large routing key": json.dumps({"routing_key": "x" * 65_000}),
    "large type and header": json.dumps({"type": "x" * 40_000, "headers": {"k": "x" * 24_000}}),
    "many properties": json.dumps({f"k{number}": number for number in range(4_000)}),
    "other types": json.dumps(
        {
            "headers": [1],
            "correlation_id": 5,
            "type": {},
            "routing_key": [],
            "priority": "x",
            "exchange": None,
        }
    ),
    "headers of other types": json.dumps(
        {"headers": {"x-solstice-attempt": "y", "x-delivery-count": -5, "x-death": 5, "traceparent": None}}
    ),
    "half characters": '{"correlation_id": "\\ud800", "headers": {"\\udfff": "\\ud800"}, "type": "\\ud800"}',
    "numbers that are none": '{"headers": {"k": NaN, "l": 1e999}, "priority": NaN}',
    "large numbers": f'{{"headers": {{"k": {"9" * 5_000}}}, "priority": {"9" * 30}}}',
    "control characters": json.dumps(
        {"headers": {"\0": "\0"}, "routing_key": "\0\r\n", "correlation_id": "\0"}
    ),
    "text": '"text"',
    "no JSON": "{{{",
}
HEADS: Final = {
    "no UTF-8": BEGIN + b"Solstice-Meta: \xff\xfe\r\n\r\n",
    "name that is no UTF-8": BEGIN + b"\xff\xfe: x\r\n\r\n",
    "name alone": BEGIN + b"Solstice-Meta\r\n\r\n",
    "status of the server": b"NATS/1.0 404 No Messages\r\nStatus: 409\r\n\r\n",
    "status that is no UTF-8": b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    "description that is no UTF-8": b"NATS/1.0 100 \xff\xff\xff\r\n\r\n",
    "folded lines": BEGIN + b"A: x\r\n y\r\n z\r\n\r\n",
    "twice": BEGIN + b"Solstice-Meta: {}\r\nSolstice-Meta: {}\r\n\r\n",
    "encoded word": BEGIN + b"Solstice-Meta: =?utf-8?b?////?=\r\n\r\n",
    "no end of a line": b"NATS/1.0",
    "no version": b"xyz\r\n\r\n",
}
LIKE_AN_ANSWER: Final = {
    "end of a batch": b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 9\r\n\r\n",
    "end of a batch without an end of a line": b"NATS/1.0 204 EOB\r\nA: xyz",
    "no message": b"NATS/1.0 404 Message Not Found\r\n\r\n",
    "sequence of another": BEGIN + b"Nats-Sequence: 1\r\nNats-Num-Pending: 0\r\n\r\n",
    "no sequence": BEGIN + b"Nats-Sequence: x\r\nA: xyz",
}
"""Heads like those with which the server answers a request for many messages."""
FIELDS: Final[Mapping[str, Mapping[str | bytes, str | bytes]]] = {
    "no body": {"other": "x"},
    "bytes": {b"body": b"\xff\xfe", b"meta": b"\xff\xfe\0", b"\xff": b"\xff"},
    "5,000 fields": {**{f"f{number}": "x" for number in range(5_000)}, "body": BAD},
    "100,000 fields": {**{f"f{number}": "x" for number in range(100_000)}, "body": BAD},
    "large body": {"body": b"x" * (9 << 20)},
}


class Records(Protocol):
    """Writes records past our publishers."""

    url: str

    def write(self, queue: str, body: bytes, meta: str | None = None) -> None:
        """Write a record with this `meta`."""
        ...


class RedisRecords:
    """Records of a Redis."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.url = server.fresh_url()

    def write(self, queue: str, body: bytes, meta: str | None = None) -> None:
        self.write_fields(queue, {"body": body} if meta is None else {"body": body, "meta": meta})

    def write_fields(self, queue: str, fields: Mapping[str | bytes, str | bytes]) -> None:
        with self._server.client() as client:
            client.xadd(queue, dict(fields))


class NatsRecords:
    """Records of a NATS."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.url = server.url

    def write(self, queue: str, body: bytes, meta: str | None = None) -> None:
        self.write_head(
            queue, body, BEGIN + (f"Solstice-Meta: {meta}\r\n".encode() if meta else b"") + b"\r\n"
        )

    def write_head(self, queue: str, body: bytes, head: bytes) -> None:
        """Return when the message is stored: the server answers a PING before that."""
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=WAIT_SECONDS) as connection:
            size = f"{len(head)} {len(head) + len(body)}"
            connection.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB stored 1\r\n')
            connection.sendall(f"HPUB {queue} stored {size}\r\n".encode() + head + body + b"\r\n")
            lines = connection.makefile("rb")
            while not (line := lines.readline()).startswith(b"MSG stored "):
                assert line.startswith((b"INFO ", b"PING")), line
            answer = json.loads(lines.readline())
            assert "seq" in answer, answer


@pytest.fixture
def redis_records(redis_servers: Callable[[str], RedisServer]) -> RedisRecords:
    return RedisRecords(redis_servers(REDIS))


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def nats_records(nats_server: NatsServer) -> NatsRecords:
    return NatsRecords(nats_server)


@pytest.fixture(params=["redis", "nats"])
def records(request: pytest.FixtureRequest) -> Records:
    return cast("Records", request.getfixturevalue(f"{request.param}_records"))


def settings_of(records: Records, name: str) -> BrokerSettings:
    """Names of the test's own, for the tests of NATS share a server."""
    word = "".join(sign if sign.isalnum() else "-" for sign in name)
    return BrokerSettings(
        amqp_url=records.url,
        amqp_exchange=word,
        amqp_queue=word,
        amqp_dlx=f"{word}-dlx",
        amqp_dlq=f"{word}-dlq",
    )


@asynccontextmanager
async def opened(settings: BrokerSettings) -> AsyncIterator[Broker]:
    async with open_broker(settings.amqp_url, name="test") as broker:
        await broker.ready(WAIT_SECONDS)
        await broker.declare(full_topology(settings))
        yield broker


async def reason_of_the_bad_before_the_good(
    records: Records, settings: BrokerSettings, write_bad: Callable[[str], None]
) -> object:
    """Write a bad and a good record; return the reason in the dead letter."""
    route, handler = jobs_route(settings), RecordingHandler()
    async with opened(settings) as broker:
        receiver = Receiver(handler, broker=broker, rng=random.Random(1))
        running = asyncio.create_task(receiver.run(route, full_topology(settings), prefetch=4))
        await asyncio.to_thread(write_bad, route.queue)
        await asyncio.to_thread(records.write, route.queue, GOOD)
        arrived = asyncio.create_task(handler.arrived.wait())
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait([running, arrived], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        (dead_letter,) = await drain(broker, route.dlq, 1)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])
        depth = await broker.depth(route.queue)
    assert (depth and depth.ready, handler.consumed) == (0, 1)
    return dead_letter.headers.get("x-solstice-reason")


@pytest.mark.parametrize("name", METAS)
async def test_record_with_hostile_properties_is_a_dead_letter_and_the_good_one_behind_it_is_taken(
    records: Records, name: str
) -> None:
    """On Redis those of depth 300 ended each orchestrator, on NATS those that are deeper."""
    settings = settings_of(records, name)

    def write_bad(queue: str) -> None:
        records.write(queue, BAD, METAS[name])

    assert await reason_of_the_bad_before_the_good(records, settings, write_bad) == "not_json"


@pytest.mark.parametrize("name", FIELDS)
async def test_entry_with_hostile_fields_is_a_dead_letter_and_the_good_one_behind_it_is_taken(
    redis_records: RedisRecords, name: str
) -> None:
    """Redis could not copy thousands of fields, and settled nothing behind them."""

    def write_bad(queue: str) -> None:
        redis_records.write_fields(queue, FIELDS[name])

    settings = settings_of(redis_records, name)
    reason = "oversize" if name == "large body" else "not_json"
    assert await reason_of_the_bad_before_the_good(redis_records, settings, write_bad) == reason


async def nothing_left(broker: Broker, queue: str) -> None:
    """Wait until all is settled: an ack follows the confirm of its dead letter."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (depth := await broker.depth(queue)) is None or (depth.ready, depth.pending) != (0, 0):  # noqa: ASYNC110  asks a server
            await asyncio.sleep(0.02)


@asks_for_inside("nats")
@pytest.mark.parametrize("name", HEADS)
async def test_message_with_a_hostile_head_is_a_dead_letter_and_the_good_one_behind_it_is_taken(
    nats_records: NatsRecords, name: str
) -> None:
    """Some ended what nats-py reads of the connection, again after each new one."""

    def write_bad(queue: str) -> None:
        nats_records.write_head(queue, BAD, HEADS[name])

    settings = settings_of(nats_records, f"head {name}")
    assert await reason_of_the_bad_before_the_good(nats_records, settings, write_bad) == "not_json"


async def test_hostile_heads_are_dead_letters_without_the_inside_of_nats_py(
    nats_records: NatsRecords, tmp_path: Path
) -> None:
    """They kept their queue waiting until they were removed by hand."""
    settings = settings_of(nats_records, "fallback")
    route, request = jobs_route(settings), job_request(repo_url="https://git.example/a/b.git")
    # The messages behind such a head are delivered again after the AckWait that the server has for its consumer.
    async with JetStreamBroker.open(settings.amqp_url, name="test", ack_wait_seconds=3) as broker:
        await broker.ready(WAIT_SECONDS)
        await broker.declare(full_topology(settings))
        for head in HEADS.values():
            nats_records.write_head(route.queue, BAD, head)
        nats_records.write(route.queue, request.encode())
        names = {name.upper(): str(getattr(settings, name)) for name in NAMES}
        with orchestrator(
            SharedFiles(directory=tmp_path), start=PINGS, SOLSTICE_PUBLIC_INTERFACES="nats", **names
        ) as process:
            await asyncio.to_thread(process.logged, "requests.stored", admitted=1)
            dead_letters = await drain(broker, route.dlq, len(HEADS))
            assert process.process.poll() is None
            await nothing_left(broker, route.queue)
    assert {each.body for each in dead_letters} == {BAD}
    reasons = {each.headers["x-solstice-reason"] for each in dead_letters}
    assert reasons == {"unreadable_head", "not_json"}


@contextmanager
def hostile_queue(records: Records, queue: str) -> Iterator[int]:
    """Write everything hostile straight into a queue; the count of it."""
    written = 0
    for meta in METAS.values():
        records.write(queue, BAD, meta)
        written += 1
    if isinstance(records, RedisRecords):
        for fields in FIELDS.values():
            records.write_fields(queue, fields)
            written += 1
    if isinstance(records, NatsRecords):
        for head in (*HEADS.values(), *LIKE_AN_ANSWER.values()):
            records.write_head(queue, BAD, head)
            written += 1
    yield written


async def test_hostile_dead_letters_can_be_looked_at_and_dropped(records: Records) -> None:
    """One of them hid all others from the page, the API and `solstice dlq`."""
    settings = settings_of(records, "dead")
    route = jobs_route(settings)
    async with opened(settings), open_dead_letter_queues(settings.amqp_url, name="test") as queues:
        with hostile_queue(records, route.dlq) as written:
            found = await browse(queues, [route.dlq], Selection(), lambda each: each)
            assert len(found) == written
            for each in found:
                json.dumps(each.whole_document())
            # By their ids: removals read them in another way.
            those = Selection(ids=tuple(each.id for each in found))
            assert len(await drop(queues.queue(route.dlq), those)) == written


@pytest.mark.parametrize("name", ["header nested 300 deep", "header nested 30,000 deep"])
async def test_hostile_properties_end_no_orchestrator(records: Records, tmp_path: Path, name: str) -> None:
    settings = BrokerSettings(amqp_url=records.url)
    async with opened(settings) as broker:
        with orchestrator(SharedFiles(directory=tmp_path), AMQP_URL=records.url) as process:
            for route in (jobs_route(settings), CANCELS):
                records.write(route.queue, BAD, METAS[name])
                (dead_letter,) = await drain(broker, route.dlq, 1)
                assert dead_letter.headers["x-solstice-reason"] == "not_json"
                records.write(route.dlq, BAD, METAS[name])
            answer = await asyncio.to_thread(
                httpx2.get, f"{process.url}/api/v1/dead-letters", trust_env=False
            )
            assert answer.status_code == 200
            assert len(answer.json()["dead_letters"]) == 2
            assert process.process.poll() is None
            process.terminate()
            assert await asyncio.to_thread(process.ended) == 0
            for route in (jobs_route(settings), CANCELS):
                await drain(broker, route.dlq, 1)


async def test_hostile_properties_of_a_status_end_no_intake(records: Records) -> None:
    settings = BrokerSettings(amqp_url=records.url)
    async with opened(settings) as broker:
        intake = StatusIntake(
            broker=broker,
            store=cast("StatusStore", None),  # nothing is to be kept
            has_remote={},
            metrics=ForgeMetrics(),
            rng=random.Random(1),
        )
        running = asyncio.create_task(intake.run(STATUSES, full_topology(settings), prefetch=4))
        for name in METAS:
            records.write(STATUSES.queue, BAD, METAS[name])
        dead_letters = await drain(broker, STATUSES.dlq, len(METAS))
        assert {each.headers["x-solstice-reason"] for each in dead_letters} == {"not_json"}
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_mistake_of_ours_in_writing_a_dead_letter_costs_its_properties_alone(
    redis_records: RedisRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(fields: Mapping[bytes, bytes], **properties: object) -> bytes:
        if fields:
            raise RecursionError("nobody thought of this")
        return dead_meta(fields, **properties)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("solstice_common.broker.redis_streams.redis_settling.dead_meta", mistaken)

    def write_bad(queue: str) -> None:
        redis_records.write(queue, BAD, json.dumps({"type": "lost"}))

    settings = settings_of(redis_records, "mistake")
    assert await reason_of_the_bad_before_the_good(redis_records, settings, write_bad) == "not_json"
