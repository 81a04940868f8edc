import dataclasses
import re
from pathlib import Path

import pytest

from solstice_common.settings import BrokerSettings
from solstice_common.topology import (
    STATUSES,
    Binding,
    Exchange,
    Queue,
    QueueType,
    Topology,
    full_topology,
    jobs_route,
)


@pytest.fixture(autouse=True)
def _published_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in BrokerSettings.model_fields:
        monkeypatch.delenv(field.upper(), raising=False)


def test_the_classic_topology_is_exactly_the_published_one() -> None:
    assert jobs_route(BrokerSettings()).topology(QueueType.CLASSIC) == Topology(
        exchanges=(
            Exchange(name="solstice.jobs", kind="direct"),
            Exchange(name="solstice.dlx", kind="fanout"),
        ),
        queues=(
            Queue(name="solstice.jobs.v1", arguments={"x-dead-letter-exchange": "solstice.dlx"}),
            Queue(name="solstice.jobs.v1.dlq", arguments={}),
        ),
        bindings=(
            Binding(exchange="solstice.jobs", queue="solstice.jobs.v1", routing_key="jobrequest.v1"),
            Binding(exchange="solstice.dlx", queue="solstice.jobs.v1.dlq", routing_key=""),
        ),
    )


def test_quorum_queues_dead_letter_at_least_once_which_needs_reject_publish() -> None:
    topology = jobs_route(BrokerSettings()).topology(QueueType.QUORUM)
    assert topology.queue("solstice.jobs.v1").arguments == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "solstice.dlx",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert topology.queue("solstice.jobs.v1.dlq").arguments == {"x-queue-type": "quorum"}


@pytest.mark.parametrize("user", ["forge", "orchestrator"])
def test_permissions_of_the_documentation_cover_what_the_services_declare(user: str) -> None:
    """forge-integration declares the statuses, too, once a source has access to its forge."""
    page = Path("docs/operations.md").read_text()
    (line,) = re.findall(rf"^\$ rabbitmqctl set_permissions -p solstice {user} (.*)$", page, re.MULTILINE)
    patterns = re.findall(r"'([^']+)'", line)
    topology = full_topology(BrokerSettings())
    names = [*(each.name for each in topology.exchanges), *(each.name for each in topology.queues)]
    assert len(patterns) == 3
    assert [name for name in names for pattern in patterns if not re.search(pattern, name)] == []


def test_statuses_have_a_pair_of_their_own() -> None:
    topology = STATUSES.topology(QueueType.QUORUM)
    assert [exchange.name for exchange in topology.exchanges] == [
        "solstice.statuses",
        "solstice.statuses.dlx",
    ]
    assert [queue.name for queue in topology.queues] == ["solstice.statuses.v1", "solstice.statuses.v1.dlq"]
    assert topology.bindings[0].routing_key == "jobstatus.v1"
    assert topology.queue("solstice.statuses.v1").dead_letter_exchange == "solstice.statuses.dlx"
    assert topology.queue("solstice.statuses.v1.dlq").dead_letter_exchange is None


def test_the_whole_is_all_routes_and_refers_to_nothing_else() -> None:
    whole = full_topology(BrokerSettings())
    assert len(whole.exchanges) == len(whole.queues) == len(whole.bindings) == 6
    exchanges, queues = {one.name for one in whole.exchanges}, {one.name for one in whole.queues}
    assert {binding.exchange for binding in whole.bindings} == exchanges
    assert {binding.queue for binding in whole.bindings} == queues
    assert {queue.dead_letter_exchange for queue in whole.queues} - {None} <= exchanges


def test_every_name_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXCHANGE", "QUEUE", "ROUTING_KEY", "DLX", "DLQ"):
        monkeypatch.setenv(f"AMQP_{name}", f"my.{name.lower()}")
    monkeypatch.setenv("AMQP_QUEUE_TYPE", "classic")
    topology = full_topology(BrokerSettings())
    assert topology.exchanges[:2] == (
        Exchange(name="my.exchange", kind="direct"),
        Exchange(name="my.dlx", kind="fanout"),
    )
    assert topology.queues[:2] == (
        Queue(name="my.queue", arguments={"x-dead-letter-exchange": "my.dlx"}),
        Queue(name="my.dlq", arguments={}),
    )
    assert topology.bindings[:2] == (
        Binding(exchange="my.exchange", queue="my.queue", routing_key="my.routing_key"),
        Binding(exchange="my.dlx", queue="my.dlq", routing_key=""),
    )
    assert all(queue.arguments.get("x-queue-type") is None for queue in topology.queues)


def test_an_unknown_queue_is_a_key_error_and_nothing_can_be_changed() -> None:
    topology = full_topology(BrokerSettings())
    with pytest.raises(KeyError, match="nobody"):
        topology.queue("nobody")
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology.queues = ()  # type: ignore[misc]  # what is tested
    with pytest.raises(TypeError):
        topology.queues[0].arguments["x-max-length"] = 1  # type: ignore[index]  # what is tested
