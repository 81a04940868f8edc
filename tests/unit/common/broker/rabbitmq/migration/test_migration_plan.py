"""The next steps of a migration after any kill, and the refusals."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from solstice_common.broker.rabbitmq.migration.migration_plan import (
    MARK,
    QueueMigration,
    Step,
    StepKind,
    plan,
    refusals,
)
from solstice_common.broker.topology_check import FoundExchange, FoundQueue, FoundTopology, Permissions
from solstice_common.topology import STATUSES, Binding, Exchange, Queue, QueueType

OLD, NEW = (STATUSES.topology(kind).queue(STATUSES.queue) for kind in (QueueType.CLASSIC, QueueType.QUORUM))
NAME, INTERIM = STATUSES.queue, f"{STATUSES.queue}.migrating"
MIGRATION = QueueMigration(
    source=NAME,
    target=NEW,
    exchange=Exchange(name=STATUSES.exchange, kind="direct"),
    routing_key=STATUSES.routing_key,
)
RENAMING = replace(MIGRATION, target=Queue(name="statuses.v2", arguments=NEW.arguments))
MARKED = FoundQueue(arguments={MARK: NAME, "x-queue-type": "classic"})
ALL_STEPS = [
    f"declare {INTERIM}",
    f"bind {INTERIM}",
    f"unbind {NAME}",
    f"empty {NAME}",
    f"delete {NAME}",
    f"declare {NAME}",
    f"bind {NAME}",
    f"unbind {INTERIM}",
    f"move {INTERIM}",
    f"delete {INTERIM}",
]


def found(*, bound: tuple[str, ...] = (NAME,), **queues: FoundQueue | None) -> FoundTopology:
    """A broker with those of the queues old, new, interim and renamed that are given."""
    names = {"old": NAME, "new": NAME, "interim": INTERIM, "renamed": "statuses.v2"}
    return FoundTopology(
        exchanges={
            STATUSES.exchange: FoundExchange(kind="direct"),
            STATUSES.dlx: FoundExchange(kind="fanout"),
        },
        queues={names[key]: queue for key, queue in queues.items() if queue is not None},
        bindings=frozenset(
            [
                *(
                    Binding(exchange=STATUSES.exchange, queue=q, routing_key=STATUSES.routing_key)
                    for q in bound
                ),
                Binding(exchange=STATUSES.dlx, queue=STATUSES.dlq, routing_key=""),
            ]
        ),
        permissions=Permissions(user="operator", configure=".*", write=".*", read=".*"),
    )


OLD_THERE = FoundQueue(arguments={"x-queue-type": "classic", **OLD.arguments})
NEW_THERE = FoundQueue(arguments=NEW.arguments)


def steps(migration: QueueMigration, there: FoundTopology) -> list[str]:
    return [f"{step.kind} {step.queue.name}" for step in plan(migration, there)]


def test_a_queue_as_it_has_to_be_needs_nothing() -> None:
    assert steps(MIGRATION, found(new=NEW_THERE)) == []


@pytest.mark.parametrize(
    ("there", "begins_at"),
    [
        pytest.param(found(old=OLD_THERE), 0, id="nothing was done"),
        pytest.param(found(old=OLD_THERE, interim=MARKED), 0, id="killed while it moved there"),
        pytest.param(found(new=NEW_THERE, interim=MARKED), 6, id="killed while it moved back"),
    ],
)
def test_a_plan_begins_where_the_broker_is(there: FoundTopology, begins_at: int) -> None:
    assert refusals(MIGRATION, there) == ()
    assert steps(MIGRATION, there) == ALL_STEPS[begins_at:]


def test_killed_without_any_queue_of_the_name_it_declares_the_new_one() -> None:
    there = found(interim=MARKED, bound=(INTERIM,))
    assert refusals(MIGRATION, there) == ()
    assert steps(MIGRATION, there) == [f"bind {INTERIM}", *ALL_STEPS[5:]]


def test_some_queue_is_bound_before_the_other_is_unbound() -> None:
    bound = {NAME}
    for step in plan(MIGRATION, found(old=OLD_THERE)):
        if step.kind is StepKind.BIND:
            bound.add(step.queue.name)
        elif step.kind in {StepKind.UNBIND, StepKind.DELETE}:
            bound.discard(step.queue.name)
        assert bound, step.sentence
    assert bound == {NAME}


def test_another_name_needs_no_interim_queue() -> None:
    assert steps(RENAMING, found(old=OLD_THERE)) == [
        "declare statuses.v2",
        "bind statuses.v2",
        f"unbind {NAME}",
        f"empty {NAME}",
        f"delete {NAME}",
    ]
    assert steps(RENAMING, found(renamed=NEW_THERE, bound=("statuses.v2",))) == []
    assert refusals(RENAMING, found(renamed=NEW_THERE, bound=("statuses.v2",))) == ()


@pytest.mark.parametrize(
    ("found_queue", "target", "interim"),
    [
        (OLD_THERE, NEW, "classic"),
        (NEW_THERE, OLD, "classic"),
        (FoundQueue(arguments={"x-queue-type": "quorum"}), NEW, "quorum"),
    ],
    ids=["classic to quorum", "quorum to classic", "quorum to quorum"],
)
def test_the_interim_queue_is_as_durable_as_the_less_durable_of_both(
    found_queue: FoundQueue, target: Queue, interim: str
) -> None:
    (first, *_) = plan(replace(MIGRATION, target=target), found(old=found_queue))
    assert first.queue.arguments["x-queue-type"] == interim
    assert first.queue.arguments[MARK] == NAME
    # It has no dead letters, so nothing in it may reach a limit of deliveries.
    assert ("x-delivery-limit" in first.queue.arguments) == (interim == "quorum")


STRANGE = Binding(exchange="orders", queue=NAME, routing_key="order")


@pytest.mark.parametrize(
    ("there", "where", "difference"),
    [
        (found(), f"queue {NAME}", "is missing"),
        (found(old=FoundQueue(arguments={"x-queue-type": "stream"})), f"queue {NAME}", "is a stream"),
        (found(old=replace(OLD_THERE, exclusive=True)), f"queue {NAME}", "is exclusive"),
        (found(old=replace(OLD_THERE, auto_delete=True)), f"queue {NAME}", "is auto-delete"),
        (found(old=OLD_THERE, interim=FoundQueue()), f"queue {INTERIM}", "is not ours"),
        (
            replace(found(old=OLD_THERE), bindings=found().bindings | {STRANGE}),
            f"binding orders -> {NAME} key 'order'",
            "is not ours",
        ),
        (
            replace(found(old=OLD_THERE), policies={INTERIM: {"message-ttl": 1}}),
            f"queue {INTERIM}",
            "has message-ttl=1 from a policy",
        ),
        (
            replace(found(old=OLD_THERE), policies={NAME: {"max-length": 1}}),
            f"queue {NAME}",
            "has max-length=1 from a policy",
        ),
        (replace(found(old=OLD_THERE), exchanges={}), f"exchange {STATUSES.exchange}", "is missing"),
        (
            replace(found(old=OLD_THERE), bindings=frozenset()),
            f"exchange {STATUSES.dlx}",
            "has no queue: dead letters",
        ),
        (
            replace(
                found(old=OLD_THERE),
                permissions=Permissions(user="u", configure=".*", write=r"^solstice\.", read=".*"),
            ),
            "user u",
            "may not write amq.default",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_migrated_is_refused_with_a_remedy(
    there: FoundTopology, where: str, difference: str
) -> None:
    reasons = refusals(MIGRATION, there)
    named: Mapping[str, str] = {each.object: each.difference for each in reasons}
    assert named[where].startswith(difference), named
    assert all(each.remedy for each in reasons)


def test_a_policy_that_rejects_publishes_is_no_reason() -> None:
    policies = {NAME: {"max-length": 1000, "overflow": "reject-publish"}}
    assert refusals(MIGRATION, replace(found(old=OLD_THERE), policies=policies)) == ()


def test_a_new_name_with_other_arguments_is_refused() -> None:
    (reason,) = refusals(RENAMING, found(old=OLD_THERE, renamed=OLD_THERE))
    assert reason.remedy == "migrate it first, without --from"


def test_each_step_is_a_sentence_for_people() -> None:
    sentences = {step.kind: step.sentence for step in plan(MIGRATION, found(old=OLD_THERE))}
    assert sentences == {
        StepKind.DECLARE: f"declare {NAME} (x-dead-letter-exchange=solstice.statuses.dlx, "
        "x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-queue-type=quorum)",
        StepKind.BIND: f"bind {NAME}",
        StepKind.UNBIND: f"unbind {INTERIM}",
        StepKind.EMPTY: f"move what waits in {NAME} to {INTERIM}, until consumers hold nothing of it",
        StepKind.MOVE: f"move what waits in {INTERIM} to {NAME}",
        StepKind.DELETE: f"delete {INTERIM}",
    }
    plain = Step(kind=StepKind.DECLARE, queue=Queue(name="q"))
    assert (plain.sentence, plain.into) == ("declare q (no arguments)", "")


def test_the_old_queue_is_named_with_the_arguments_that_it_has() -> None:
    there = FoundQueue(arguments={**OLD_THERE.arguments, "x-max-length": 5, "x-odd": [1]})
    (unbound,) = (step for step in plan(MIGRATION, found(old=there)) if step.kind is StepKind.EMPTY)
    assert unbound.queue.arguments == {**OLD_THERE.arguments, "x-max-length": 5}


def test_a_queue_without_a_dead_letter_exchange_needs_none() -> None:
    assert [each.name for each in MIGRATION.topology.exchanges] == [STATUSES.exchange, STATUSES.dlx]
    without = replace(MIGRATION, target=Queue(name=NAME))
    assert [each.name for each in without.topology.exchanges] == [STATUSES.exchange]


def test_an_interim_queue_that_another_run_left_is_used_as_it_is() -> None:
    quorum = FoundQueue(arguments={MARK: NAME, "x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
    assert MIGRATION.interim(found(old=OLD_THERE, interim=quorum)).arguments == quorum.arguments
    to_quorum = found(old=NEW_THERE, interim=MARKED)
    assert MIGRATION.interim(to_quorum).arguments == MARKED.arguments


@pytest.mark.parametrize("name", [STATUSES.exchange, NAME, INTERIM, f"{NAME}.migrating.lock"])
def test_every_object_needs_permissions(name: str) -> None:
    allowed = Permissions(user="u", configure=rf"^(?!{name}$)", write=".*", read=".*")
    (reason,) = refusals(MIGRATION, replace(found(old=OLD_THERE), permissions=allowed))
    assert f"may not configure {name}" in reason.difference
