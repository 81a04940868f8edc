"""`solstice topology check` on a real NATS server that differs from the expected topology."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, KeyValueConfig, StreamSource
from typer.testing import CliRunner

from solstice_cli.commands.topology import app
from tests.garbage import LOST_CONNECTIONS, garbage_of_this_test
from tests.servers.nats_server import NatsServer

__all__ = ["garbage_of_this_test"]

# As in `test_nats_links`: a connection that Python 3.11 loses while it is cancelled is closed by its garbage collector.
pytestmark = LOST_CONNECTIONS

STREAM, QUEUE, CONSUMER = (
    "stream solstice_jobs_v1",
    "solstice.jobs.v1",
    "consumer solstice_jobs_v1 > solstice",
)
JOBS, DURABLE = "solstice_jobs_v1", "solstice"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as started:
        topology(started, "declare", code=0)
        yield started


def topology(server: NatsServer, *arguments: str, code: int) -> str:
    done = CliRunner().invoke(
        app, [*arguments, "--amqp-url", server.url], env={"AMQP_URL": None, "SOLSTICE_HOME": None}
    )
    assert done.exit_code == code, (done.exit_code, done.exception, done.stdout)
    return done.stdout


def differences(server: NatsServer, *, code: int = 1) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(topology(server, "check", "--json", code=code))["differences"]
    return found


def test_streams_of_classes_are_missing_there_or_left_by_the_setting(server: NatsServer) -> None:
    classes = [f"queue solstice.jobs.v1.{each}" for each in ("critical", "high", "low")]
    split = ("--amqp-priorities", "split")
    missing = json.loads(topology(server, "check", "--json", *split, code=1))["differences"]
    assert {*classes} < {each["object"] for each in missing}
    topology(server, "declare", *split, code=0)
    assert json.loads(topology(server, "check", "--json", *split, code=0))["differences"] == []
    assert [each["object"] for each in differences(server)] == classes


class Raw(Protocol):
    """Asks the API of JetStream; an error that may not be fails the test."""

    async def __call__(
        self, subject: str, body: Mapping[str, Any] | None, *, may_miss: bool = False
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server as an operator changes it: by nats-py, and by its own API."""

    jetstream: JetStreamContext
    raw: Raw

    async def stream(self, **changes: Any) -> None:
        found = (await self.raw(f"STREAM.INFO.{JOBS}", None))["config"]
        await self.raw(f"STREAM.UPDATE.{JOBS}", {**found, **changes})

    async def stream_anew(self, **changes: Any) -> None:
        found = (await self.raw(f"STREAM.INFO.{JOBS}", None))["config"]
        await self.raw(f"STREAM.DELETE.{JOBS}", None)
        await self.raw(f"STREAM.CREATE.{JOBS}", {**found, **changes})
        if not changes.get("no_ack") and "mirror" not in changes:
            await self.consumer_anew()

    async def consumer_anew(self, **changes: Any) -> None:
        await self.raw(f"CONSUMER.DELETE.{JOBS}.{DURABLE}", None, may_miss=True)
        config = {"durable_name": DURABLE, "ack_policy": "explicit", "max_ack_pending": -1, **changes}
        await self.raw(f"CONSUMER.DURABLE.CREATE.{JOBS}.{DURABLE}", {"stream_name": JOBS, "config": config})

    async def bucket_anew(self, **changes: Any) -> None:
        bucket = await self.jetstream.key_value("solstice_topology")
        table = (await bucket.get("topology")).value
        await self.jetstream.delete_key_value("solstice_topology")
        made = await self.jetstream.create_key_value(KeyValueConfig(bucket="solstice_topology", **changes))
        await made.put("topology", table or b"")


def change(server: NatsServer, by: Callable[[Server], Awaitable[object]]) -> None:
    async def work() -> None:
        client = await nats.connect(server.url)
        try:

            async def raw(
                subject: str, body: Mapping[str, Any] | None, *, may_miss: bool = False
            ) -> dict[str, Any]:
                answer = await client.request(
                    f"$JS.API.{subject}", json.dumps(body).encode() if body else b""
                )
                document: dict[str, Any] = json.loads(answer.data)
                assert may_miss or "error" not in document, document
                return document

            await by(Server(jetstream=client.jetstream(), raw=raw))
        finally:
            await client.close()

    asyncio.run(work())


async def _sourced(at: Server) -> None:
    await at.jetstream.add_stream(name="orders", subjects=["orders"])
    found = await at.jetstream.stream_info(JOBS)
    await at.jetstream.update_stream(found.config.evolve(sources=[StreamSource(name="orders")]))


async def _stranger(at: Server) -> None:
    await at.raw(f"CONSUMER.DELETE.{JOBS}.{DURABLE}", None)
    await at.jetstream.add_consumer(JOBS, ConsumerConfig(durable_name="reader"))


async def _subject_taken(at: Server) -> None:
    await at.raw(f"STREAM.DELETE.{JOBS}", None)
    await at.jetstream.add_stream(name="everything", subjects=["solstice.jobs.*"])


NS: Final = 10**9
DRIFTS: Final[dict[str, tuple[Callable[[Server], Awaitable[object]], str, str, str]]] = {
    "stream missing": (
        lambda at: at.raw(f"STREAM.DELETE.{JOBS}", None),
        f"queue {QUEUE}",
        "is missing",
        "solstice topology declare",
    ),
    "messages expire": (
        lambda at: at.stream(max_age=3600 * NS, duplicate_window=120 * NS),
        STREAM,
        "max_age=3600.0 (drops messages)",
        "nats stream edit solstice_jobs_v1 --max-age=-1",
    ),
    "drops the oldest": (
        lambda at: at.stream(max_msgs=1000, discard="old"),
        STREAM,
        "discard=old with a limit (drops messages)",
        "nats stream edit solstice_jobs_v1 --discard=new",
    ),
    "in memory": (
        lambda at: at.stream_anew(storage="memory"),
        STREAM,
        "storage=memory",
        "nats stream rm solstice_jobs_v1, then: solstice topology declare",
    ),
    "another retention": (
        lambda at: at.stream_anew(retention="limits"),
        STREAM,
        "retention=limits",
        "nats stream rm solstice_jobs_v1",
    ),
    "another subject": (
        lambda at: at.stream(subjects=[QUEUE, "orders"]),
        STREAM,
        "subjects=['solstice.jobs.v1', 'orders']",
        "nats stream edit solstice_jobs_v1 --subjects=solstice.jobs.v1",
    ),
    "short memory of ids": (
        lambda at: at.stream(duplicate_window=2 * NS),
        STREAM,
        "remembers ids for 2 s",
        "--dupe-window=120s",
    ),
    "confirms nothing": (
        lambda at: at.stream(no_ack=True),
        STREAM,
        "confirms nothing (no_ack)",
        "nats stream edit solstice_jobs_v1 --ack",
    ),
    "takes other streams": (
        _sourced,
        STREAM,
        "takes messages of other streams",
        "without its sources",
    ),
    "consumer missing": (
        lambda at: at.raw(f"CONSUMER.DELETE.{JOBS}.{DURABLE}", None),
        CONSUMER,
        "is missing",
        "solstice topology declare",
    ),
    "deliveries used up": (
        lambda at: at.consumer_anew(max_deliver=3),
        CONSUMER,
        "max_deliver=3",
        "nats consumer rm solstice_jobs_v1 solstice, then: solstice topology declare",
    ),
    "only some subjects": (
        lambda at: at.consumer_anew(filter_subject=QUEUE),
        CONSUMER,
        "filter=solstice.jobs.v1",
        "nats consumer rm solstice_jobs_v1 solstice",
    ),
    "short ack wait": (
        lambda at: at.consumer_anew(ack_wait=NS),
        CONSUMER,
        "ack_wait=1 s",
        "nats consumer rm solstice_jobs_v1 solstice",
    ),
    "few at once": (
        lambda at: at.consumer_anew(max_ack_pending=10),
        CONSUMER,
        "max_ack_pending=10",
        "nats consumer rm solstice_jobs_v1 solstice",
    ),
    "consumer of a stranger": (
        _stranger,
        "consumer solstice_jobs_v1 > reader",
        "is not ours",
        "nats consumer rm solstice_jobs_v1 reader",
    ),
    "subject taken": (
        _subject_taken,
        "stream everything",
        "takes the subject solstice.jobs.v1",
        "nats stream edit everything --subjects",
    ),
    "bindings expire": (
        lambda at: at.bucket_anew(ttl=3600),
        "bucket solstice_topology",
        "forgets exchanges and bindings after 3600 s",
        "nats kv rm solstice_topology",
    ),
    "bindings gone": (
        lambda at: at.jetstream.delete_key_value("solstice_topology"),
        "exchange solstice.jobs",
        "is missing",
        "solstice topology declare",
    ),
}


def test_a_declared_server_differs_in_nothing(server: NatsServer) -> None:
    assert differences(server, code=0) == []


def test_eighteen_kinds_of_drift_are_seeded() -> None:
    assert len(DRIFTS) == 18


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_seeded_drift_of_streams_is_named_with_its_remedy(server: NatsServer, drift: str) -> None:
    seed, where, difference, remedy = DRIFTS[drift]
    change(server, seed)
    found = differences(server)
    named = [each for each in found if each["object"] == where and difference in each["difference"]]
    assert len(named) == 1, found
    assert remedy in named[0]["remedy"]


def test_an_empty_server_gets_the_advice_to_declare_everything() -> None:
    with NatsServer() as server:
        found = differences(server)
        assert {each["remedy"] for each in found} == {"solstice topology declare"}
        assert len(found) == 12


def test_without_jetstream_or_server_the_error_says_so() -> None:
    with NatsServer(jetstream=False) as server:
        done = CliRunner().invoke(app, ["check", "--amqp-url", server.url])
    assert "JetStream is not available" in str(done.exception)
    done = CliRunner().invoke(app, ["check", "--amqp-url", server.url])
    assert "no connection to the broker" in str(done.exception)
