"""`solstice topology check` on a real Redis that differs from the expected topology."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest
from redis import Redis
from typer.testing import CliRunner

from solstice_cli.commands.topology import app
from tests.servers.redis_server import RedisServer
from tests.servers.versions import REDIS

JOBS, DEAD = "solstice.jobs.v1", "solstice.jobs.v1.dlq"
QUEUE, TABLE = f"queue {JOBS}", "solstice:topology"
EMPTY_IT: Final = "let it run empty"


def topology(url: str, *arguments: str, code: int) -> str:
    done = CliRunner().invoke(
        app, [*arguments, "--amqp-url", url], env={"AMQP_URL": None, "SOLSTICE_HOME": None}
    )
    assert done.exit_code == code, (done.exit_code, done.exception, done.stdout)
    return done.stdout


def differences(url: str, *arguments: str, code: int = 1) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(topology(url, "check", "--json", *arguments, code=code))[
        "differences"
    ]
    return found


def arguments(client: Redis, **changed: Any) -> None:
    """Change what is declared of the queue of requests; None takes an argument away."""
    declared = client.hget(TABLE, f"q:{JOBS}")
    assert isinstance(declared, bytes | str)
    found = {**json.loads(declared), **changed}
    left = {name: value for name, value in found.items() if value is not None}
    client.hset(TABLE, f"q:{JOBS}", json.dumps(left))


def bound(client: Redis, exchange: str, key: str, queues: Sequence[str]) -> None:
    client.hset(TABLE, f"b:{exchange}\0{key}", json.dumps(queues))


def group_anew(client: Redis, start: str, *, waiting: int) -> None:
    """Replace our group of the queue of requests while so many messages wait."""
    client.xgroup_destroy(JOBS, "solstice")
    for _ in range(waiting):
        client.xadd(JOBS, {"body": "{}"})
    client.xgroup_create(JOBS, "solstice", start)


DRIFTS: Final[dict[str, tuple[Callable[[Redis], object], str, str, str]]] = {
    "stream missing": (lambda at: at.delete(JOBS), QUEUE, "is missing", "topology declare"),
    "queue not declared": (
        lambda at: at.hdel(TABLE, f"q:{JOBS}"),
        QUEUE,
        "is missing",
        "topology declare",
    ),
    "key of another type": (
        lambda at: at.set(DEAD, "a text"),
        f"queue {DEAD}",
        "its key holds a string, has to hold a stream",
        "rename the key, then: solstice topology declare",
    ),
    "key expires": (
        lambda at: at.pexpire(JOBS, 86400000),
        QUEUE,
        "its key expires in 86400 s: the queue and all in it vanish",
        "redis-cli PERSIST solstice.jobs.v1",
    ),
    "group missing": (
        lambda at: at.xgroup_destroy(JOBS, "solstice"),
        QUEUE,
        "has no consumer group 'solstice': nothing is delivered",
        "topology declare",
    ),
    "group after waiting messages": (
        lambda at: group_anew(at, "$", waiting=1),
        QUEUE,
        "its group 'solstice' began after messages that were waiting",
        "stop the services, then: redis-cli XGROUP SETID solstice.jobs.v1 solstice 0",
    ),
    "group after messages to come": (
        lambda at: group_anew(at, "99999999999999-0", waiting=0),
        QUEUE,
        "its group 'solstice' begins after messages that are still to come",
        "redis-cli XGROUP SETID solstice.jobs.v1 solstice 0",
    ),
    "group of a stranger": (
        lambda at: at.xgroup_create(JOBS, "copies", "0"),
        QUEUE,
        "has the consumer group 'copies', which is not ours",
        "redis-cli XGROUP DESTROY solstice.jobs.v1 copies",
    ),
    "evicts queues": (
        lambda at: at.config_set("maxmemory-policy", "allkeys-lru"),
        "server",
        "has maxmemory-policy allkeys-lru: once there is a maxmemory it evicts queues",
        "redis-cli CONFIG SET maxmemory-policy noeviction",
    ),
    "exchange missing": (
        lambda at: at.hdel(TABLE, "x:solstice.dlx"),
        "exchange solstice.dlx",
        "is missing",
        "topology declare",
    ),
    "exchange of another kind": (
        lambda at: at.hset(TABLE, "x:solstice.dlx", "direct"),
        "exchange solstice.dlx",
        "is a direct exchange, has to be fanout",
        "delete the exchange",
    ),
    "classic queue": (
        lambda at: arguments(at, **{"x-queue-type": "classic"}),
        QUEUE,
        "is a classic queue, has to be quorum",
        "AMQP_QUEUE_TYPE=classic",
    ),
    "no dead-letter exchange": (
        lambda at: arguments(at, **{"x-dead-letter-exchange": None}),
        QUEUE,
        "has no x-dead-letter-exchange",
        EMPTY_IT,
    ),
    "drops the oldest": (
        lambda at: arguments(at, **{"x-overflow": "drop-head"}),
        QUEUE,
        "has x-overflow=drop-head, has to have x-overflow=reject-publish",
        EMPTY_IT,
    ),
    "messages expire": (
        lambda at: arguments(at, **{"x-message-ttl": 3600000}),
        QUEUE,
        "has x-message-ttl=3600000, has to have no x-message-ttl: messages that wait longer",
        EMPTY_IT,
    ),
    "limited length": (
        lambda at: arguments(at, **{"x-max-length": 10}),
        QUEUE,
        "has x-max-length=10",
        EMPTY_IT,
    ),
    "binding missing": (
        lambda at: at.hdel(TABLE, "b:solstice.jobs\0jobrequest.v1"),
        f"binding solstice.jobs -> {JOBS} key 'jobrequest.v1'",
        "is missing",
        "topology declare",
    ),
    "binding of a stranger": (
        lambda at: bound(at, "solstice.jobs", "jobrequest.v1", [JOBS, "copies"]),
        "binding solstice.jobs -> copies key 'jobrequest.v1'",
        "copies of our messages go to a queue that is not ours",
        "remove the binding",
    ),
    "binding of another key": (
        lambda at: bound(at, "solstice.jobs", "jobcancel.v1", [JOBS]),
        f"binding solstice.jobs -> {JOBS} key 'jobcancel.v1'",
        "messages of another key",
        "remove the binding",
    ),
    "exchange of a stranger": (
        lambda at: bound(at, "orders", "new", [JOBS]),
        f"binding orders -> {JOBS} key 'new'",
        "messages of an exchange that is not ours",
        "remove the binding",
    ),
}


@pytest.fixture
def server(redis_servers: Callable[[str], RedisServer]) -> Iterator[RedisServer]:
    found = redis_servers(REDIS)
    topology(found.fresh_url(), "declare", code=0)
    yield found
    with found.client() as client:
        client.config_set("maxmemory-policy", "noeviction")


def test_a_declared_server_differs_in_nothing(server: RedisServer) -> None:
    assert differences(server.url, code=0) == []


def test_twenty_kinds_of_drift_are_seeded() -> None:
    assert len(DRIFTS) == 20


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_seeded_drift_is_named_with_its_remedy(server: RedisServer, drift: str) -> None:
    seed, where, difference, remedy = DRIFTS[drift]
    with server.client() as client:
        seed(client)
    found = differences(server.url)
    named = [each for each in found if each["object"] == where and difference in each["difference"]]
    assert len(named) == 1, found
    assert remedy in named[0]["remedy"]


def test_queues_of_classes_are_left_by_the_setting(server: RedisServer) -> None:
    topology(server.url, "declare", "--amqp-priorities", "split", code=0)
    assert [each["object"] for each in differences(server.url)] == [
        f"queue solstice.jobs.v1.{each}" for each in ("critical", "high", "low")
    ]


def test_an_empty_server_gets_the_advice_to_declare_everything(server: RedisServer) -> None:
    found = differences(server.fresh_url())
    assert {each["remedy"] for each in found} == {"solstice topology declare"}
    assert len(found) == 12


@pytest.mark.parametrize(
    "drift", ["group missing", "group after waiting messages", "group after messages to come"]
)
def test_the_remedy_for_a_group_lets_each_message_be_delivered(server: RedisServer, drift: str) -> None:
    seed, *_ = DRIFTS[drift]
    with server.client() as client:
        seed(client)
        before = client.xlen(JOBS)
        (found,) = differences(server.url)
        words = shlex.split(found["remedy"].rpartition(": ")[2])
        if words[0] == "redis-cli":
            client.execute_command(*words[1:])
        else:
            topology(server.url, *words[2:], code=0)
        client.xadd(JOBS, {"body": "{}"})
        ((_, entries),) = client.xreadgroup("solstice", "test", {JOBS: ">"})
        assert len(entries) == before + 1
    assert differences(server.url, code=0) == []


def test_messages_that_are_held_or_wait_are_no_difference(server: RedisServer) -> None:
    with server.client() as client:
        for _ in range(5):
            client.xadd(JOBS, {"body": "{}"})
        ((_, entries),) = client.xreadgroup("solstice", "test", {JOBS: ">"}, count=3)
        assert differences(server.url, code=0) == []
        # As each consumer of ours settles.
        client.xack(JOBS, "solstice", entries[0][0])
        client.xdel(JOBS, entries[0][0])
        assert differences(server.url, code=0) == []
