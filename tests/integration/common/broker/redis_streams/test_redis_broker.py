"""Redis as a broker under kills, lost replies, frozen consumers and wrong settings."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest
import redis

from solstice_common.broker import PublishStatus, open_broker, read_topology
from solstice_common.broker.capabilities import Certainty
from solstice_common.broker.delivery import Ack, Refuse
from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.redis_streams.redis_scripts import DEDUPE_SECONDS, PUBLISH
from solstice_common.broker.redis_streams.redis_topology import found_topology
from solstice_common.broker.topology_check import topology_differences
from solstice_common.errors import BrokerUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, QueueType, full_topology
from tests.polling import wait_until, wait_until_true
from tests.servers.certificates import certificate_for_loopback
from tests.servers.proxy import fault_proxy
from tests.servers.redis_server import RedisServer
from tests.servers.versions import REDIS
from tests.traffic import (
    ROUTE,
    TOPOLOGY,
    WAIT_SECONDS,
    Traffic,
    connected,
    drain,
    numbers,
    order,
    take,
    wait_for_ready,
)

EVERY_VERSION = True

PEER: Final = Path(__file__).parents[1] / "embedded_peer.py"
EXAMPLE: Final = Path(__file__).parents[5] / "schemas" / "examples" / "jobrequest.v1.full.json"


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
def own(redis_flavour: str) -> Iterator[RedisServer]:
    """A server of this test alone."""
    with RedisServer(flavour=redis_flavour) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_for_loopback(tmp_path_factory.mktemp("tls"))


def test_each_flavour_is_the_server_that_it_names(redis_flavour: str, redis_server: RedisServer) -> None:
    with redis_server.client() as plain:
        facts = plain.info("server")
    names_valkey = facts.get("server_name") == "valkey"
    version = facts["valkey_version" if names_valkey else "redis_version"]
    if redis_flavour != REDIS:
        assert names_valkey == (redis_flavour == "valkey")
        assert int(version.partition(".")[0]) >= 8


async def test_five_kills_under_two_hundred_publishers_lose_nothing_that_was_confirmed(
    own: RedisServer,
) -> None:
    async with connected(own.url) as broker:
        traffic = Traffic(broker)
        async with traffic.flowing(publishers=200):
            for _ in range(5):
                await traffic.progress(500)
                await asyncio.to_thread(own.kill)
                await wait_until(lambda: not broker.health.connected)
                await asyncio.to_thread(own.start)
            await traffic.progress(500)
        assert traffic.confirmed - traffic.seen == set()
        assert len(traffic.confirmed) >= 3000


class LatePeer:
    """A process that holds one message, and acks it when it is asked to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def settle(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGUSR1)


@contextmanager
def late_peer(url: str) -> Iterator[LatePeer]:
    command = [sys.executable, str(PEER), url, "late"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield LatePeer(process)
        finally:
            process.kill()


async def test_a_publish_without_a_reply_is_unknown_and_stored_once_and_its_repeat_is_recognised(
    url: str, redis_server: RedisServer
) -> None:
    async with fault_proxy(url) as proxy, connected(proxy.url(url), confirm_timeout_seconds=10) as broker:
        message = msgspec.structs.replace(order(1), headers={IDEMPOTENCY_HEADER: "push-1"})
        for _ in range(3):
            proxy.lose_replies(PUBLISH.sha.encode(), 1)
            (outcome,) = await broker.publish([message])
            assert outcome.status is PublishStatus.UNKNOWN
            message = msgspec.structs.replace(message, repeat=True)
            await broker.ready(10)
        assert (await broker.publish([message]))[0].confirmed
        with redis_server.client() as plain:
            assert plain.xlen(ROUTE.queue) == 1


async def test_a_full_consumer_wakes_another_one_for_what_it_leaves(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solstice_common.broker.redis_streams.redis_consumer.WAIT_SECONDS", 60.0)
    async with (
        connected(url) as broker,
        broker.consume(ROUTE.queue, prefetch=1) as one,
        broker.consume(ROUTE.queue, prefetch=1) as other,
        asyncio.timeout(30),
    ):
        batches = [asyncio.create_task(consumer.batch()) for consumer in (one, other)]
        # Both wait in Redis by then.
        await asyncio.sleep(1.0)
        await broker.publish([order(1), order(2)])
        found = [numbers(list(batch)) for batch in await asyncio.gather(*batches)]
    assert sorted(found) == [[1], [2]]


async def test_each_message_of_one_call_has_an_outcome_of_its_own(
    url: str, redis_server: RedisServer
) -> None:
    keyed = msgspec.structs.replace(order(1), headers={IDEMPOTENCY_HEADER: "push-1"})
    messages = [
        keyed,
        order(2, routing_key="elsewhere"),
        msgspec.structs.replace(keyed, repeat=True),
        order(3),
        order(4, exchange="missing"),
        order(5),
        order(6),
    ]
    async with connected(url) as broker:
        with redis_server.client() as plain:
            found = plain.hget("solstice:topology", f"q:{ROUTE.queue}")
            limited = json.dumps({**json.loads(found or b""), "x-max-length": 3})
            plain.hset("solstice:topology", f"q:{ROUTE.queue}", limited)
            outcomes = await broker.publish(messages)
            assert plain.xlen(ROUTE.queue) == 3
        assert [outcome.status.value for outcome in outcomes] == [
            "confirmed",
            "unroutable",
            "confirmed",
            "confirmed",
            "rejected",
            "confirmed",
            "rejected",
        ]
        assert [outcome.detail for outcome in outcomes if outcome.status is PublishStatus.REJECTED] == [
            "there is no exchange 'missing'",
            f"the queue {ROUTE.queue!r} is full",
        ]
        assert numbers(await drain(broker, ROUTE.queue, 3)) == [1, 3, 5]


async def test_idempotency_keys_are_kept_in_a_few_sets_that_expire_after_the_window(
    url: str, redis_server: RedisServer
) -> None:
    async with connected(url) as broker:
        messages = [
            msgspec.structs.replace(order(number), headers={IDEMPOTENCY_HEADER: f"push-{number}"})
            for number in range(1200)
        ]
        assert all(outcome.confirmed for outcome in await broker.publish(messages))
        repeats = [msgspec.structs.replace(message, repeat=True) for message in messages[::100]]
        with redis_server.client() as plain:
            names = list(plain.scan_iter(f"{ROUTE.queue}:idemp:*"))
            assert 1 <= len(names) <= 4
            for name in names:
                left = plain.pttl(name)
                assert DEDUPE_SECONDS * 1000 - 60_000 < left <= DEDUPE_SECONDS * 1000 + 10_000
            # As if they had been stored nine minutes ago.
            for name in names:
                before, _, number = name.decode().rpartition(":")
                plain.rename(name, f"{before}:{int(number) - 54}")
            assert all(outcome.confirmed for outcome in await broker.publish(repeats))
            assert plain.xlen(ROUTE.queue) == 1200
            for name in names:
                before, _, number = name.decode().rpartition(":")
                plain.delete(f"{before}:{int(number) - 54}")
            assert all(outcome.confirmed for outcome in await broker.publish(repeats))
            assert plain.xlen(ROUTE.queue) == 1212


async def test_a_consumer_frozen_beyond_its_lease_loses_its_message_and_its_late_ack_changes_nothing(
    url: str,
) -> None:
    short = f"{url}?lease=2"
    async with connected(short, topology=STATUSES.topology(QueueType.QUORUM)) as broker:
        number = order(7, exchange=STATUSES.exchange, routing_key=STATUSES.routing_key)
        assert (await broker.publish([number]))[0].confirmed
        with late_peer(short) as peer:
            assert await asyncio.to_thread(peer.line) == "held 1"
            peer.freeze()
            async with broker.consume(STATUSES.queue, prefetch=1) as consumer:
                (again,) = await take(consumer, 1)
                assert again.redelivered
                assert again.headers["x-delivery-count"] == 1
                peer.settle()
                assert await asyncio.to_thread(peer.line) == "settled"
        # Had the late ack counted, nothing would come back.
        assert numbers(await drain(broker, STATUSES.queue, 1)) == [7]


@pytest.mark.parametrize("lost", ["everything", "the stream"])
async def test_a_queue_that_vanishes_under_its_consumer_is_declared_again(
    url: str, redis_server: RedisServer, lost: str
) -> None:
    async with connected(url) as broker, broker.consume(ROUTE.queue, prefetch=4) as consumer:
        assert (await broker.publish([order(0)]))[0].confirmed
        (first,) = await take(consumer, 1)
        await consumer.settle([(first, Ack())])
        with redis_server.client() as plain:
            if lost == "everything":
                plain.flushall()
            else:
                plain.delete(ROUTE.queue)

        async def is_there_again() -> bool:
            depth = await broker.depth(ROUTE.queue)
            return depth is not None and depth.consumers == 1

        await wait_until_true("the queue is declared again", is_there_again)
        assert (await broker.publish([order(1)]))[0].confirmed
        assert numbers(await take(consumer, 1)) == [1]


async def test_what_waits_in_a_restarted_server_is_still_there_and_its_scripts_are_loaded_again(
    own: RedisServer,
) -> None:
    async with connected(own.url) as broker:
        assert (await broker.publish([order(0)]))[0].confirmed
        with own.client() as plain:
            plain.script_flush()
        assert (await broker.publish([order(1)]))[0].confirmed
        await asyncio.to_thread(own.restart)
        await wait_until(lambda: broker.health.connected)
        assert numbers(await drain(broker, ROUTE.queue, 2)) == [0, 1]


async def test_a_frozen_server_makes_publishes_unknown_and_leaving_takes_seconds(own: RedisServer) -> None:
    async with asyncio.timeout(60):
        async with (
            connected(own.url, confirm_timeout_seconds=1) as broker,
            broker.consume(ROUTE.queue, prefetch=1),
        ):
            own.freeze()
            (outcome,) = await broker.publish([order(0)])
            assert outcome.status is PublishStatus.UNKNOWN
    own.thaw()


async def test_the_twentieth_failed_delivery_makes_a_message_poison(
    url: str, redis_server: RedisServer
) -> None:
    async with connected(url) as broker:
        await broker.publish([order(0), order(1)])
        with redis_server.client() as plain:
            (entry, _), _ = plain.xrange(ROUTE.queue)
            # As twenty consumers that died leave the message.
            plain.xreadgroup("solstice", "$returned", {ROUTE.queue: ">"}, count=1)
            plain.xclaim(ROUTE.queue, "solstice", "$returned", 0, [entry], retrycount=21, justid=True)
        async with broker.consume(ROUTE.queue, prefetch=2) as consumer:
            (other,) = await take(consumer, 1)
            assert numbers([other]) == [1]
            (dead,) = await drain(broker, ROUTE.dlq, 1)
        assert (dead.body, dead.headers["x-solstice-reason"]) == (b"0", "too_many_deliveries")


async def test_failed_deliveries_from_a_queue_without_dead_letters_never_become_poison(
    url: str, redis_server: RedisServer
) -> None:
    async with connected(url) as broker:
        await broker.publish([order(0, exchange=ROUTE.dlx)])
        with redis_server.client() as plain:
            ((_, ((entry, _),)),) = plain.xreadgroup("solstice", "$returned", {ROUTE.dlq: ">"}, count=1)
            plain.xclaim(ROUTE.dlq, "solstice", "$returned", 0, [entry], retrycount=99, justid=True)
        (dead_letter,) = await drain(broker, ROUTE.dlq, 1)
        assert (dead_letter.body, dead_letter.headers["x-delivery-count"]) == (b"0", 98)


async def test_poison_is_dropped_and_counted_where_no_dead_letters_are_kept(
    url: str, redis_server: RedisServer
) -> None:
    dropped: list[str] = []
    async with open_broker(url, name="test", on_dropped=dropped.append) as broker:
        await broker.ready(10)
        await broker.declare(TOPOLOGY)
        await broker.publish([order(0)])
        with redis_server.client() as plain:
            ((_, ((entry, _),)),) = plain.xreadgroup("solstice", "$returned", {ROUTE.queue: ">"}, count=1)
            plain.xclaim(ROUTE.queue, "solstice", "$returned", 0, [entry], retrycount=21, justid=True)
        async with broker.consume(ROUTE.queue, prefetch=1):
            await wait_until(lambda: dropped == ["too_many_deliveries"])
            await wait_for_ready(broker, ROUTE.queue, 0)
        with redis_server.client() as plain:
            assert (plain.xlen(ROUTE.queue), plain.xlen(ROUTE.dlq)) == (0, 0)


async def test_the_depth_says_what_is_held_how_old_it_is_and_how_long_the_lease_lasts(url: str) -> None:
    async with connected(f"{url}?lease=20") as broker:
        await broker.publish([order(0), order(1), order(2)])
        async with broker.consume(ROUTE.queue, prefetch=2) as consumer:
            await take(consumer, 2)
            depth = await broker.depth(ROUTE.queue)
        assert depth is not None
        assert (depth.ready, depth.pending, depth.consumers) == (1, 2, 1)
        assert depth.oldest_seconds is not None
        assert 0 <= depth.oldest_seconds < 60
        assert depth.lease_seconds is not None
        assert 0 < depth.lease_seconds <= 20


async def test_a_dead_letter_without_a_queue_for_it_stays_where_it_is(
    url: str, redis_server: RedisServer
) -> None:
    async with connected(url) as broker:
        await broker.publish([order(0)])
        with redis_server.client() as plain:
            plain.hdel("solstice:topology", f"b:{ROUTE.dlx}\0")
        async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
            (one,) = await take(consumer, 1)
            await consumer.settle([(one, Refuse(reason="not_json", detail=""))])
            (again,) = await take(consumer, 1)
            await broker.declare(TOPOLOGY)
            await consumer.settle([(again, Refuse(reason="not_json", detail=""))])
            assert len(await drain(broker, ROUTE.dlq, 1)) == 1


async def test_nothing_is_trimmed_and_what_is_settled_leaves_nothing_behind(
    url: str, redis_server: RedisServer
) -> None:
    async with connected(url) as broker:
        for first in range(0, 5000, 500):
            outcomes = await broker.publish([order(number) for number in range(first, first + 500)])
            assert all(outcome.confirmed for outcome in outcomes)
        seen: list[int] = []
        async with broker.consume(ROUTE.queue, prefetch=300) as consumer:
            while len(seen) < 5000:
                batch = await consumer.batch()
                seen += [int(delivery.body) for delivery in batch]
                await consumer.settle([(delivery, Ack()) for delivery in batch])
        assert seen == list(range(5000))
    with redis_server.client() as plain:
        assert plain.xlen(ROUTE.queue) == 0
        assert plain.xpending(ROUTE.queue, "solstice")["pending"] == 0
        assert plain.exists(f"{ROUTE.queue}:consumers") == 0


# -- settings of the server --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "detail"),
    [
        ({"appendfsync": "everysec"}, "not durable, appendfsync everysec; set appendfsync always"),
        ({"appendonly": "no"}, "not durable, AOF is off; set appendonly yes and appendfsync always"),
    ],
    ids=["everysec", "no AOF"],
)
async def test_a_server_that_is_less_durable_than_it_could_be_is_degraded_and_works(
    setting: dict[str, str], detail: str, redis_flavour: str
) -> None:
    with RedisServer(setting, flavour=redis_flavour) as server:
        async with connected(server.url) as broker:
            assert (broker.health.connected, broker.health.blocked) == (True, None)
            assert broker.health.degraded == detail
            assert broker.capabilities.durable_on_confirm is Certainty.NO
            assert (await broker.publish([order(0)]))[0].confirmed


async def test_a_server_that_may_evict_queues_is_refused(redis_flavour: str) -> None:
    with RedisServer({"maxmemory-policy": "allkeys-lru"}, flavour=redis_flavour) as server:
        async with connected(server.url) as broker:
            assert broker.health.blocked is not None
            assert "allkeys-lru may evict queues; set maxmemory-policy noeviction" in broker.health.blocked
            (outcome,) = await broker.publish([order(0)])
            assert outcome.status is PublishStatus.REJECTED
            assert outcome.detail == broker.health.blocked
            with server.client() as plain:
                plain.config_set("maxmemory-policy", "noeviction")
            await wait_until(lambda: broker.health.blocked is None)
            assert (await broker.publish([order(0)]))[0].confirmed


async def test_a_server_out_of_memory_rejects_is_blocked_and_takes_more_once_messages_are_consumed(
    own: RedisServer,
) -> None:
    with own.client() as plain:
        plain.config_set("maxmemory", 8 << 20)
    async with connected(own.url) as broker:
        big = msgspec.structs.replace(order(0), body=bytes(1 << 20))
        stored = 0
        while (outcome := (await broker.publish([big]))[0]).confirmed:
            stored += 1
            assert stored < 20
        assert outcome.status is PublishStatus.REJECTED
        assert "OOM" in outcome.detail
        await wait_until(lambda: broker.health.blocked is not None)
        assert "out of memory" in str(broker.health.blocked)
        # The reader and the acks still work at the limit.
        await drain(broker, ROUTE.queue, stored)
        await wait_until(lambda: broker.health.blocked is None)
        assert (await broker.publish([order(1)]))[0].confirmed


async def test_a_server_that_has_neither_our_scripts_nor_memory_is_used_again_when_it_has(
    own: RedisServer,
) -> None:
    async with connected(own.url) as broker:
        with own.client() as client:
            client.config_set("maxmemory", "1")
            client.script_flush()
            client.client_kill_filter(_type="normal", skipme=True)
        await wait_until(lambda: "memory" in broker.health.detail)
        with own.client() as client:
            client.config_set("maxmemory", "0")
        await broker.ready(WAIT_SECONDS)
        assert [outcome.confirmed for outcome in await broker.publish([order(1)])] == [True]


async def test_a_user_who_may_not_ask_for_settings_makes_the_durability_unknown(own: RedisServer) -> None:
    with own.client() as plain:
        plain.acl_setuser(
            "ci", enabled=True, passwords=["+sesame"], keys=["*"], categories=["+@all"], commands=["-config"]
        )
    async with connected(own.url.replace("://", "://ci:sesame@")) as broker:
        assert broker.capabilities.durable_on_confirm is Certainty.UNKNOWN
        assert "durability unknown, CONFIG is not allowed" in str(broker.health.degraded)
        assert (await broker.publish([order(0)]))[0].confirmed
        assert len(await drain(broker, ROUTE.queue, 1)) == 1
        assert "sesame" not in broker.url


@pytest.mark.parametrize(
    ("settings", "address", "detail"),
    [
        ({"requirepass": "right"}, "redis://:wrong@", "password"),
        ({"requirepass": "right"}, "redis://", "Authentication required"),
        ({"cluster-enabled": "yes"}, "redis://", "it is a Redis Cluster"),
    ],
    ids=["wrong password", "no password", "cluster"],
)
async def test_a_server_that_does_not_suit_is_quoted(
    settings: dict[str, str], address: str, detail: str, redis_flavour: str
) -> None:
    with RedisServer(settings, flavour=redis_flavour) as server:
        async with open_broker(server.url.replace("redis://", address), name="test") as broker:
            with pytest.raises(BrokerUnavailable, match=detail) as raised:
                await broker.ready(3)
            assert "wrong@" not in str(raised.value)


async def test_a_link_over_tls_is_verified_and_recovers_like_any_other(url: str, certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with fault_proxy(url, tls=context) as proxy:
        secure = proxy.url(url).replace("redis://", "rediss://")
        async with open_broker(secure, name="stranger") as stranger:
            with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.ready(3)
        async with connected(f"{secure}?cafile={certificate}") as broker:
            traffic = Traffic(broker)
            async with traffic.flowing():
                await traffic.progress()
                proxy.drop()
                await traffic.progress()
            assert traffic.confirmed <= traffic.seen


async def test_installations_with_a_prefix_of_their_own_share_a_database(url: str) -> None:
    async with connected(f"{url}?prefix=a:") as one, connected(f"{url}?prefix=b:") as other:
        await one.publish([order(1)])
        await wait_for_ready(one, ROUTE.queue, 1)
        await wait_for_ready(other, ROUTE.queue, 0)


async def test_what_is_declared_is_found_and_what_vanished_is_a_difference(
    url: str, redis_server: RedisServer
) -> None:
    assert len(topology_differences(TOPOLOGY, await read_topology(url, TOPOLOGY))) > 0
    async with connected(url):
        assert topology_differences(TOPOLOGY, await read_topology(url, TOPOLOGY)) == ()
        with redis_server.client() as plain:
            plain.delete(ROUTE.dlq)
        (missing, *_) = topology_differences(TOPOLOGY, await read_topology(url, TOPOLOGY))
        assert missing.object == f"queue {ROUTE.dlq}"
    other = ROUTE.topology(QueueType.CLASSIC)
    differences = topology_differences(other, await read_topology(url, other))
    assert f"queue {ROUTE.queue}" in {each.object for each in differences}


async def test_the_topology_of_a_server_that_is_away_cannot_be_read() -> None:
    with pytest.raises(BrokerUnavailable, match=r"redis://127\.0\.0\.1:1"):
        await found_topology("redis://127.0.0.1:1/0")


# -- other clients
# ---------------------------------------------------------------------------------------------------------


async def test_a_client_that_knows_nothing_but_redis_publishes_a_job_request(
    url: str, redis_server: RedisServer
) -> None:
    """As docs/messages.md says; the client is redis-py alone."""
    body = EXAMPLE.read_bytes()
    settings = BrokerSettings(amqp_url=url)
    async with connected(url, topology=full_topology(settings)) as broker:
        with redis_server.client() as plain:
            plain.xadd("solstice.jobs.v1", {"body": body})
            plain.xadd(
                "solstice.jobs.v1",
                {
                    "body": body,
                    "meta": json.dumps({"type": "jobrequest.v1", "headers": {"x-solstice-attempt": 2}}),
                },
            )
        bare, described = await drain(broker, "solstice.jobs.v1", 2)
    assert bare.body == described.body == body
    assert JobRequestV1.decode(bare.body).schema_version == "jobrequest.v1"
    assert (bare.type, described.type) == (None, "jobrequest.v1")
    assert described.headers == {"x-solstice-attempt": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"meta": b"{"},
        {"meta": b"\xff"},
        {"meta": b"[1]", "body": b"x"},
        {"meta": b"{" * 100_000, "body": b"x"},
        {"meta": b'{"headers": 7, "type": [], "message_id": null}', "body": b"x"},
        {"meta": b'{"headers": {"x-delivery-count": 19, "x-death": "forged"}}', "body": b"x"},
        {"other": b"x"},
    ],
    ids=["half", "no text", "list", "deep", "wrong types", "forged", "no body"],
)
async def test_an_entry_that_is_no_message_can_be_read_and_refused(
    url: str, redis_server: RedisServer, fields: dict[str, bytes]
) -> None:
    async with connected(url) as broker:
        with redis_server.client() as plain:
            plain.xadd(ROUTE.queue, fields)
        async with broker.consume(ROUTE.queue, prefetch=1) as consumer:
            (odd,) = await take(consumer, 1)
            assert odd.body == fields.get("body", b"")
            assert not odd.headers
            await consumer.settle([(odd, Refuse(reason="not_json", detail="odd"))])
        (dead,) = await drain(broker, ROUTE.dlq, 1)
        assert dead.headers["x-solstice-reason"] == "not_json"
        assert (await broker.publish([order(1)]))[0].confirmed
        assert numbers(await drain(broker, ROUTE.queue, 1)) == [1]


async def test_what_a_foreign_consumer_of_our_group_dropped_comes_back(
    url: str, redis_server: RedisServer
) -> None:
    async with connected(f"{url}?lease=1") as broker:
        await broker.publish([order(5)])
        with redis_server.client() as plain:
            assert plain.xreadgroup("solstice", "stranger", {ROUTE.queue: ">"})
        assert numbers(await drain(broker, ROUTE.queue, 1)) == [5]


def test_the_plain_client_would_send_a_publish_again() -> None:
    """Why the link sets redis-py's retries to none."""
    client = redis.asyncio.Redis()
    assert client.connection_pool.connection_kwargs["retry"].get_retries() > 0
