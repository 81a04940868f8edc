"""Each kind of difference between a broker and our topology, and its remedy."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from solstice_common.broker.topology_check import (
    FoundExchange,
    FoundQueue,
    FoundTopology,
    Permissions,
    TopologyDifference,
    effective_policy,
    merged_policy,
    topology_differences,
)
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, Binding, QueueType, Topology, jobs_route, split_jobs_route

DECLARED = STATUSES.topology(QueueType.QUORUM)
WORK, DEAD = "solstice.statuses.v1", "solstice.statuses.v1.dlq"
EXCHANGE, DLX = "solstice.statuses", "solstice.statuses.dlx"


def as_declared(topology: Topology = DECLARED) -> FoundTopology:
    return FoundTopology(
        exchanges={each.name: FoundExchange(kind=each.kind) for each in topology.exchanges},
        queues={each.name: FoundQueue(arguments=each.arguments) for each in topology.queues},
        bindings=frozenset(topology.bindings),
        permissions=Permissions(user="orchestrator", configure=".*", write=".*", read=r"^solstice\."),
        major_version=3,
    )


def with_queue(name: str, found: FoundQueue) -> FoundTopology:
    there = as_declared()
    return replace(there, queues={**there.queues, name: found})


def with_exchange(name: str, found: FoundExchange) -> FoundTopology:
    there = as_declared()
    return replace(there, exchanges={**there.exchanges, name: found})


def arguments_of(name: str, **changed: object) -> Mapping[str, object]:
    arguments = {
        **DECLARED.queue(name).arguments,
        **{f"x-{key.replace('_', '-')}": changed[key] for key in changed},
    }
    return {key: value for key, value in arguments.items() if value is not None}


@pytest.mark.parametrize("queue_type", QueueType)
def test_what_was_declared_does_not_differ(queue_type: QueueType) -> None:
    topology = STATUSES.topology(queue_type)
    assert topology_differences(topology, as_declared(topology)) == ()


def test_on_an_empty_broker_every_object_is_missing_and_declared_by_one_command() -> None:
    found = FoundTopology(exchanges={}, queues={}, bindings=frozenset())
    assert topology_differences(DECLARED, found) == tuple(
        TopologyDifference(object=name, difference="is missing", remedy="solstice topology declare")
        for name in (f"exchange {EXCHANGE}", f"exchange {DLX}", f"queue {WORK}", f"queue {DEAD}")
    )


def test_what_another_setting_left_is_told_and_its_bindings_are_no_strangers() -> None:
    settings = BrokerSettings.model_construct()
    one = jobs_route(settings).topology(QueueType.QUORUM)
    split = split_jobs_route(settings).topology(QueueType.QUORUM)
    left = topology_differences(one, as_declared(split), left=split)
    assert [each.object for each in left] == [
        f"queue solstice.jobs.v1.{each}" for each in ("critical", "high", "low")
    ]
    assert all("restart an orchestrator" in each.remedy for each in left)
    assert topology_differences(one, as_declared(one), left=split) == ()
    assert topology_differences(split, as_declared(split), left=split) == ()


@pytest.mark.parametrize(
    ("found", "difference", "remedy"),
    [
        (
            with_exchange(DLX, FoundExchange(kind="direct")),
            "is a direct exchange, has to be fanout",
            "delete",
        ),
        (with_exchange(EXCHANGE, FoundExchange(kind="direct", durable=False)), "not durable", "delete"),
        (with_exchange(EXCHANGE, FoundExchange(kind="direct", auto_delete=True)), "auto-delete", "delete"),
        (with_exchange(EXCHANGE, FoundExchange(kind="direct", internal=True)), "is internal", "delete"),
        (
            with_exchange(EXCHANGE, FoundExchange(kind="direct", policy={"alternate-exchange": "lost"})),
            "has the alternate exchange 'lost'",
            "out of the policy",
        ),
        (
            with_exchange(EXCHANGE, FoundExchange(kind="direct", arguments={"alternate-exchange": "lost"})),
            "has the alternate exchange 'lost'",
            "delete the exchange",
        ),
        (
            with_queue(DEAD, FoundQueue(arguments={})),
            "is a classic queue, has to be quorum",
            "AMQP_QUEUE_TYPE=classic",
        ),
        (with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD), durable=False)), "not durable", "empty"),
        (
            with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD), auto_delete=True)),
            "auto-delete",
            "empty",
        ),
        (with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD), exclusive=True)), "exclusive", "empty"),
        (
            with_queue(WORK, FoundQueue(arguments=arguments_of(WORK, dead_letter_exchange=None))),
            f"has no x-dead-letter-exchange, has to have x-dead-letter-exchange={DLX}",
            "empty",
        ),
        (
            with_queue(WORK, FoundQueue(arguments=arguments_of(WORK, overflow="drop-head"))),
            "has x-overflow=drop-head, has to have x-overflow=reject-publish",
            "empty",
        ),
        (
            with_queue(WORK, FoundQueue(arguments=arguments_of(WORK, message_ttl=60000))),
            "has x-message-ttl=60000, has to have no x-message-ttl: messages that wait longer",
            "empty",
        ),
        (
            with_queue(WORK, FoundQueue(arguments=arguments_of(WORK), policy={"message-ttl": 60000})),
            "has message-ttl=60000 from a policy: messages that wait longer",
            "take message-ttl out of the policy",
        ),
        (
            with_queue(WORK, FoundQueue(arguments=arguments_of(WORK), policy={"expires": 60000})),
            "has expires=60000 from a policy: the queue and all in it vanish",
            "take expires out of the policy",
        ),
        (
            with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD), policy={"max-length": 10})),
            "has max-length=10 from a policy: a full queue drops its oldest",
            "or set overflow to reject-publish",
        ),
        (
            with_queue(WORK, FoundQueue(arguments=arguments_of(WORK), policy={"overflow": "drop-head"})),
            "has overflow=drop-head from a policy: dead letters are handed on at most once",
            "take overflow out of the policy",
        ),
        (
            with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD), policy={"delivery-limit": 5})),
            "drops a dead letter whose readers died 5 times",
            "'{\"delivery-limit\": -1}'",
        ),
        (
            replace(as_declared(), bindings=frozenset(DECLARED.bindings[:1])),
            "is missing",
            "solstice topology declare",
        ),
        (
            replace(
                as_declared(),
                bindings=as_declared().bindings | {Binding(exchange=DLX, queue="q", routing_key="")},
            ),
            "is not ours: copies of our messages go to a queue that is not ours",
            "remove the binding",
        ),
        (
            replace(
                as_declared(),
                bindings=as_declared().bindings | {Binding(exchange="x", queue=WORK, routing_key="k")},
            ),
            "is not ours: messages of an exchange that is not ours reach the queue",
            "remove the binding",
        ),
        (
            replace(
                as_declared(),
                bindings=as_declared().bindings
                | {Binding(exchange=EXCHANGE, queue=WORK, routing_key="other")},
            ),
            "is not ours: messages of another key",
            "remove the binding",
        ),
        (
            replace(
                as_declared(),
                permissions=Permissions(user="u", configure=".*", write="^solstice.statuses$", read=".*"),
            ),
            f"may not write {DLX}, {WORK}, {DEAD} (its expression: '^solstice.statuses$')",
            "set_permissions",
        ),
        (
            replace(as_declared(), permissions=Permissions(user="u", configure="", write=".*", read=".*")),
            "may not configure",
            "set_permissions",
        ),
    ],
)
def test_each_difference_is_named_once_with_its_remedy(
    found: FoundTopology, difference: str, remedy: str
) -> None:
    (named,) = topology_differences(DECLARED, found)
    assert difference in named.difference
    assert remedy in named.remedy


def test_a_limit_with_which_a_full_queue_rejects_publishes_loses_nothing() -> None:
    for policy in ({"max-length": 10}, {"max-length-bytes": 10, "overflow": "reject-publish"}):
        assert (
            topology_differences(
                DECLARED, with_queue(WORK, FoundQueue(arguments=arguments_of(WORK), policy=policy))
            )
            == ()
        )


@pytest.mark.parametrize(
    ("major_version", "policy", "differs"),
    [
        (3, {}, False),
        (4, {}, True),
        (4, {"delivery-limit": -1}, False),
        (4, {"delivery-limit": 7}, True),
        (None, {}, False),
    ],
)
def test_a_dead_letter_queue_has_no_delivery_limit(
    major_version: int | None, policy: Mapping[str, object], differs: bool
) -> None:
    found = replace(
        with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD), policy=policy)), major_version=major_version
    )
    assert bool(topology_differences(DECLARED, found)) == differs


def test_a_limit_of_no_delivery_at_all_drops_dead_letters_too() -> None:
    found = with_queue(DEAD, FoundQueue(arguments=arguments_of(DEAD, delivery_limit=0)))
    differences = [each.difference for each in topology_differences(DECLARED, found)]
    assert "drops a dead letter whose readers died 0 times (delivery-limit)" in differences


def test_a_binding_is_not_missing_where_one_of_its_ends_is() -> None:
    there = as_declared()
    found = replace(
        there,
        queues={name: queue for name, queue in there.queues.items() if name != WORK},
        bindings=frozenset(each for each in there.bindings if each.queue != WORK),
    )
    assert [each.object for each in topology_differences(DECLARED, found)] == [f"queue {WORK}"]


def test_the_default_exchange_hides_no_foreign_binding_behind_it() -> None:
    foreign = {
        Binding(exchange="", queue=WORK, routing_key=WORK),
        Binding(exchange="x", queue=WORK, routing_key="k"),
    }
    found = replace(as_declared(), bindings=as_declared().bindings | foreign)
    assert [each.object for each in topology_differences(DECLARED, found)] == [f"binding x -> {WORK} key 'k'"]


def test_what_the_broker_does_not_say_of_permissions_differs_from_nothing() -> None:
    assert topology_differences(DECLARED, replace(as_declared(), permissions=None)) == ()


def policy(pattern: str, priority: int, apply_to: str, **definition: object) -> Mapping[str, object]:
    return {"pattern": pattern, "priority": priority, "apply-to": apply_to, "definition": definition}


def test_of_all_policies_that_match_the_one_of_the_highest_priority_applies() -> None:
    policies = [
        policy("^solstice", 1, "all", expires=1),
        policy("statuses", 5, "queues", expires=5),
        policy("statuses", 7, "exchanges", expires=7),
        policy("other", 9, "queues", expires=9),
        policy("(", 9, "queues", expires=9),
    ]
    assert effective_policy("queues", WORK, policies) == {"expires": 5}
    assert effective_policy("exchanges", EXCHANGE, policies) == {"expires": 7}
    assert effective_policy("queues", "jobs", policies) == {}


def test_a_policy_may_be_for_one_type_of_queue() -> None:
    policies = [policy("statuses", 5, "classic_queues", expires=5)]
    assert effective_policy("queues", WORK, policies, "quorum") == {}
    assert effective_policy("queues", WORK, policies, "classic") == {"expires": 5}


def test_an_operator_policy_only_lowers_limits() -> None:
    assert merged_policy({"max-length": 10, "expires": 5}, {"max-length": 20, "message-ttl": 3}) == {
        "max-length": 10,
        "expires": 5,
        "message-ttl": 3,
    }
    assert merged_policy({"max-length": 10}, {"max-length": 2}) == {"max-length": 2}
