"""The topology is the published one, with each kind of queue."""

import dataclasses

import pytest
from pydantic import ValidationError

from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import (
    STATUSES,
    Binding,
    Exchange,
    Queue,
    QueueType,
    Topology,
    asking_topology,
    full_topology,
    jobs_route,
    split_jobs_route,
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


def test_split_gives_each_class_a_queue_a_key_and_dead_letters() -> None:
    settings = BrokerSettings(amqp_priorities="split")
    topology = jobs_route(settings).topology(QueueType.CLASSIC)
    assert topology.exchanges == (
        Exchange(name="solstice.jobs", kind="direct"),
        *(Exchange(name=f"solstice.dlx{each}", kind="fanout") for each in ("", ".critical", ".high", ".low")),
    )
    for each in ("", ".critical", ".high", ".low"):
        queue, dlq = f"solstice.jobs.v1{each}", f"solstice.jobs.v1{each}.dlq"
        assert topology.queue(queue).dead_letter_exchange == f"solstice.dlx{each}"
        assert (
            Binding(exchange="solstice.jobs", queue=queue, routing_key=f"jobrequest.v1{each}")
            in topology.bindings
        )
        assert Binding(exchange=f"solstice.dlx{each}", queue=dlq, routing_key="") in topology.bindings
    assert len(topology.queues) == len(topology.bindings) == 8


def test_split_adds_to_what_was_there_and_changes_none_of_it() -> None:
    """So that services with the one setting and the other work side by side."""
    for make in (full_topology, asking_topology):
        one, split = make(BrokerSettings()), make(BrokerSettings(amqp_priorities="split"))
        assert set(one.exchanges) < set(split.exchanges)
        assert set(one.bindings) < set(split.bindings)
        assert [each for each in split.queues if each in one.queues] == list(one.queues)
        for names in ([each.name for each in split.queues], [each.name for each in split.exchanges]):
            assert len(names) == len(set(names))


def test_only_split_has_routes_of_classes_and_default_is_that_of_v1() -> None:
    one, split = jobs_route(BrokerSettings()), jobs_route(BrokerSettings(amqp_priorities="split"))
    assert {one.of(each) for each in (None, *Priority)} == {one}
    assert one.weights == {"solstice.jobs.v1": 1}
    assert split.of(None) == split.of(Priority.DEFAULT) == split
    assert (split.queue, split.routing_key, split.dlq) == (one.queue, one.routing_key, one.dlq)
    assert dict(split.weights) == {
        "solstice.jobs.v1.critical": 8,
        "solstice.jobs.v1.high": 4,
        "solstice.jobs.v1": 2,
        "solstice.jobs.v1.low": 1,
    }
    assert list(split.weights) == [split.of(each).queue for each in Priority]
    assert split_jobs_route(BrokerSettings()) == split


def test_classes_are_named_after_what_the_settings_name_within_amqp_s_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longest = "q" * 246
    for name in ("EXCHANGE", "QUEUE", "ROUTING_KEY", "DLX", "DLQ"):
        monkeypatch.setenv(f"AMQP_{name}", longest)
    critical = split_jobs_route(BrokerSettings()).of(Priority.CRITICAL)
    assert critical.queue == critical.dlx == critical.dlq == critical.routing_key == f"{longest}.critical"
    assert len(critical.queue) == 255
    monkeypatch.setenv("AMQP_QUEUE", longest + "q")
    with pytest.raises(ValidationError, match="at most 246 characters"):
        BrokerSettings()


def test_an_unknown_queue_is_a_key_error_and_nothing_can_be_changed() -> None:
    topology = full_topology(BrokerSettings())
    with pytest.raises(KeyError, match="nobody"):
        topology.queue("nobody")
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology.queues = ()  # type: ignore[misc]  # what is tested
    with pytest.raises(TypeError):
        topology.queues[0].arguments["x-max-length"] = 1  # type: ignore[index]  # what is tested
