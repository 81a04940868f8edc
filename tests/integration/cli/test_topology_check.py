"""`solstice topology check` on real brokers that differ from the expected topology."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest
from typer.testing import CliRunner

from solstice_cli.commands.topology import app
from tests.servers.rabbitmq import RabbitMQServer, Vhost

EVERY_VERSION = True

JOBS, DEAD = "solstice.jobs.v1", "solstice.jobs.v1.dlq"
DEAD_LETTERS: Final = ("solstice.jobs.v1.dlq", "solstice.cancels.v1.dlq", "solstice.statuses.v1.dlq")


def topology(*arguments: str, check: int) -> str:
    """Run `solstice topology ARGUMENTS`; it must end with the exit code `check`."""
    done = CliRunner().invoke(app, [*arguments], env={"AMQP_URL": None, "SOLSTICE_HOME": None})
    codes = {"ConfigurationError": 2, "BrokerUnavailable": 3}
    code = codes.get(type(done.exception).__name__, done.exit_code)
    assert code == check, (done.exit_code, done.exception, done.stdout)
    return str(done.exception) if code > 1 else done.stdout


class Drifted:
    """A declared virtual host that a test changes."""

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self._options = ["--amqp-url", vhost.url, "--management-url", vhost.server.management_url]
        topology("declare", "--amqp-url", vhost.url, check=0)
        if vhost.server.major >= 4:
            # As the documentation advises: RabbitMQ 4 has a limit that drops dead letters.
            vhost.policy(r"\.dlq$", {"delivery-limit": -1}, priority=1)

    def check(self, *arguments: str, differs: bool = True) -> list[dict[str, str]]:
        document = json.loads(topology("check", *self._options, *arguments, "--json", check=int(differs)))
        assert document["unknown"] == []
        differences: list[dict[str, str]] = document["differences"]
        return differences

    def queue_anew(self, name: str, **body: Any) -> None:
        """Delete a queue and make it again, bound as it was."""
        route = {
            JOBS: ("solstice.jobs", "jobrequest.v1"),
            DEAD: ("solstice.dlx", ""),
        }[name]
        self.vhost.api("DELETE", "queues", name)
        self.vhost.api("PUT", "queues", name, {"durable": True, **body})
        self.bind(route[0], name, route[1])

    def exchange_anew(self, name: str, queue: str, key: str, **body: Any) -> None:
        self.vhost.api("DELETE", "exchanges", name)
        self.vhost.api("PUT", "exchanges", name, body)
        self.bind(name, queue, key)

    def copy_to(self, queue: str) -> None:
        """Let a foreign queue get a copy of each request."""
        self.vhost.api("PUT", "queues", queue, {"durable": True})
        self.bind("solstice.jobs", queue, "jobrequest.v1")

    def bind(self, exchange: str, queue: str, key: str) -> None:
        self.vhost.api("POST", "bindings", f"e/{exchange}/q/{queue}", {"routing_key": key})


@pytest.fixture
def drifted(rabbitmq_flavour: str, rabbitmq_servers: Callable[[str], RabbitMQServer]) -> Iterator[Drifted]:
    with rabbitmq_servers(rabbitmq_flavour).vhost() as vhost:
        yield Drifted(vhost)


QUORUM: Final = {"x-queue-type": "quorum"}
WORK: Final = {
    **QUORUM,
    "x-dead-letter-exchange": "solstice.dlx",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
DRIFTS: Final[dict[str, tuple[Callable[[Drifted], object], str, str, str]]] = {
    "queue missing": (
        lambda at: at.vhost.api("DELETE", "queues", "solstice.cancels.v1"),
        "queue solstice.cancels.v1",
        "is missing",
        "solstice topology declare",
    ),
    "exchange of another kind": (
        lambda at: at.exchange_anew("solstice.dlx", DEAD, "", type="direct", durable=True),
        "exchange solstice.dlx",
        "is a direct exchange, has to be fanout",
        "delete the exchange",
    ),
    "exchange not durable": (
        lambda at: at.exchange_anew("solstice.jobs", JOBS, "jobrequest.v1", type="direct", durable=False),
        "exchange solstice.jobs",
        "is not durable",
        "delete the exchange",
    ),
    "classic queue": (
        lambda at: at.queue_anew(DEAD, arguments={"x-queue-type": "classic"}),
        f"queue {DEAD}",
        "is a classic queue, has to be quorum",
        "AMQP_QUEUE_TYPE=classic",
    ),
    "no dead-letter exchange": (
        lambda at: at.queue_anew(
            JOBS,
            arguments={**QUORUM, "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"},
        ),
        f"queue {JOBS}",
        "has no x-dead-letter-exchange",
        "let it run empty",
    ),
    "drops the oldest": (
        lambda at: at.queue_anew(JOBS, arguments={**WORK, "x-overflow": "drop-head"}),
        f"queue {JOBS}",
        "has x-overflow=drop-head, has to have x-overflow=reject-publish",
        "let it run empty",
    ),
    "messages expire": (
        lambda at: at.queue_anew(JOBS, arguments={**WORK, "x-message-ttl": 3600000}),
        f"queue {JOBS}",
        "has x-message-ttl=3600000",
        "let it run empty",
    ),
    "policy limits dead letters": (
        lambda at: at.vhost.policy(
            r"jobs\.v1\.dlq$",
            {"max-length": 10, "delivery-limit": 50}
            | ({"delivery-limit": -1} if at.vhost.server.major >= 4 else {}),
            priority=3,
        ),
        f"queue {DEAD}",
        "max-length=10 from a policy: a full queue drops its oldest message",
        "take max-length out of the policy",
    ),
    "policy lets queues vanish": (
        lambda at: at.vhost.policy(r"^solstice\.jobs\.v1$", {"expires": 86400000}, priority=3),
        f"queue {JOBS}",
        "has expires=86400000 from a policy",
        "take expires out of the policy",
    ),
    "binding missing": (
        lambda at: at.vhost.api("DELETE", "bindings", "e/solstice.jobs/q/solstice.jobs.v1/jobrequest.v1"),
        f"binding solstice.jobs -> {JOBS} key 'jobrequest.v1'",
        "is missing",
        "solstice topology declare",
    ),
    "binding of a stranger": (
        lambda at: at.copy_to("copies"),
        "binding solstice.jobs -> copies key 'jobrequest.v1'",
        "copies of our messages go to a queue that is not ours",
        "remove the binding",
    ),
    "alternate exchange": (
        lambda at: at.vhost.server.api(
            "PUT",
            f"policies/{at.vhost.name}/alternate",
            {
                "pattern": r"^solstice\.jobs$",
                "definition": {"alternate-exchange": "amq.fanout"},
                "apply-to": "exchanges",
            },
        ),
        "exchange solstice.jobs",
        "has the alternate exchange 'amq.fanout'",
        "take alternate-exchange out of the policy",
    ),
}


def test_a_declared_broker_differs_in_nothing(drifted: Drifted) -> None:
    assert drifted.check(differs=False) == []


def test_twelve_kinds_of_drift_are_seeded() -> None:
    assert len(DRIFTS) == 12


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_seeded_drift_is_named_with_its_remedy(drifted: Drifted, drift: str) -> None:
    seed, where, difference, remedy = DRIFTS[drift]
    seed(drifted)
    named = [each for each in drifted.check() if each["object"] == where and difference in each["difference"]]
    assert len(named) == 1
    assert remedy in named[0]["remedy"]


def test_queues_of_classes_are_missing_there_or_left_by_the_setting(drifted: Drifted) -> None:
    classes = [f"queue solstice.jobs.v1.{each}" for each in ("critical", "high", "low")]
    split = ("--amqp-priorities", "split")
    missing = {each["object"]: each["remedy"] for each in drifted.check(*split)}
    assert [missing[each] for each in classes] == ["solstice topology declare"] * 3
    topology("declare", "--amqp-url", drifted.vhost.url, *split, check=0)
    assert drifted.check(*split, differs=False) == []
    left = drifted.check()
    assert [each["object"] for each in left] == classes
    assert {each["difference"] for each in left} == {"is of AMQP_PRIORITIES=split, which is not set here"}


def test_a_user_without_a_right_is_named_with_what_it_may_not(drifted: Drifted) -> None:
    server, vhost = drifted.vhost.server, drifted.vhost.name
    server.api("PUT", f"users/{vhost}", {"password": "p", "tags": ""})
    try:
        rights = {"configure": r"^solstice\.", "write": r"^solstice\.jobs$", "read": r"^solstice\."}
        server.api("PUT", f"permissions/{vhost}/{vhost}", rights)
        (named,) = drifted.check("--user", vhost)
        assert named["object"] == f"user {vhost}"
        assert named["difference"].startswith("may not write solstice.dlx, ")
        # Nor may it ask for itself: that needs a tag, and the error says which.
        own = urlsplit(server.management_url)
        url = own._replace(netloc=f"{quote(vhost)}:p@{own.hostname}:{own.port}").geturl()
        refused = topology("check", "--amqp-url", drifted.vhost.url, "--management-url", url, check=2)
        assert "give it the tag 'management'" in refused
    finally:
        server.api("DELETE", f"users/{vhost}")


def test_a_delivery_limit_of_dead_letters_is_named_with_the_command_against_it(drifted: Drifted) -> None:
    if drifted.vhost.server.major >= 4:
        drifted.vhost.api("DELETE", "policies", "test-1")
    else:
        drifted.vhost.policy(r"\.dlq$", {"delivery-limit": 20}, priority=1)
    differences = drifted.check()
    assert [each["object"] for each in differences] == [f"queue {name}" for name in DEAD_LETTERS]
    assert all("readers died 20 times" in each["difference"] for each in differences)
    assert all("rabbitmqctl set_policy" in each["remedy"] for each in differences)


def test_the_embedded_broker_is_compared_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    missing = topology("check", "--amqp-url", url, check=1).splitlines()
    assert missing[0] == "exchange solstice.jobs\tis missing\tsolstice topology declare"
    assert len(missing) == 12
    assert not (tmp_path / "broker.db").exists()
    topology("declare", "--amqp-url", url, check=0)
    assert topology("check", "--amqp-url", url, check=0) == ""
    differences = json.loads(
        topology("check", "--amqp-url", url, "--amqp-queue-type", "classic", "--json", check=1)
    )
    assert {"is a quorum queue, has to be classic"} <= {
        each["difference"] for each in differences["differences"]
    }


def test_without_a_management_api_the_error_says_how_to_enable_or_name_it(drifted: Drifted) -> None:
    away = ("--management-url", "http://127.0.0.1:1")
    error = topology("check", "--amqp-url", drifted.vhost.url, *away, check=3)
    assert (
        "enable it (rabbitmq-plugins enable rabbitmq_management), or name it with --management-url" in error
    )
