"""Decides how a queue of RabbitMQ gets other arguments or another name while services run. Pure.

A queue cannot change its arguments, so an interim queue takes its place;
`docs/decisions/0048-queue-migration.md` explains the order of the steps. The broker holds the
only state: each run plans from it again, and continues where another run ended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from solstice_common.broker.topology_check import (
    DECLARE,
    LIMITS,
    TELLS_PUBLISHER,
    FoundQueue,
    FoundTopology,
    TopologyDifference,
    missing_permissions,
)
from solstice_common.topology import Argument, Binding, Exchange, Queue, Topology

MARK: Final = "x-solstice-migrating"
"""The argument of an interim queue: the name of the queue whose place it takes."""
DEFAULT_EXCHANGE: Final = "amq.default"
"""The name under which permissions know the exchange that every queue is bound to."""
_NO_LIMIT: Final = 1_000_000


class StepKind(StrEnum):
    DECLARE = "declare"
    BIND = "bind"
    UNBIND = "unbind"
    EMPTY = "empty"
    """Move all messages, and wait until consumers hold none, too."""
    MOVE = "move"
    """Move all messages of a queue that only we consume."""
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do to a queue; each may be repeated."""

    kind: StepKind
    queue: Queue
    into: str = ""
    """Where messages move."""

    @property
    def sentence(self) -> str:
        """What it does, for people."""
        name = self.queue.name
        match self.kind:
            case StepKind.DECLARE:
                arguments = ", ".join(f"{key}={value}" for key, value in sorted(self.queue.arguments.items()))
                return f"declare {name} ({arguments or 'no arguments'})"
            case StepKind.EMPTY:
                return f"move what waits in {name} to {self.into}, until consumers hold nothing of it"
            case StepKind.MOVE:
                return f"move what waits in {name} to {self.into}"
            case _:
                return f"{self.kind} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMigration:
    """The requested migration: `source`, in any state, becomes `target`."""

    source: str
    target: Queue
    exchange: Exchange
    routing_key: str

    @property
    def in_place(self) -> bool:
        """Whether the name stays."""
        return self.source == self.target.name

    @property
    def interim_name(self) -> str:
        return f"{self.source}.migrating"

    @property
    def lock_name(self) -> str:
        """The name of an exclusive queue that only one process at a time can have."""
        return f"{self.source}.migrating.lock"

    @property
    def topology(self) -> Topology:
        """Every object that a migration reads or touches, as `management_api.found_topology` takes it."""
        names = dict.fromkeys((self.source, self.target.name, self.interim_name))
        dlx = self.target.dead_letter_exchange
        return Topology(
            exchanges=(self.exchange, *([] if dlx is None else [Exchange(name=dlx, kind="fanout")])),
            queues=tuple(Queue(name=name) for name in names),
            bindings=(),
        )

    def interim(self, found: FoundTopology) -> Queue:
        """The queue that takes the source's place: as durable as the less durable of both."""
        types = {_type(self.target.arguments), *(_type(each.arguments) for each in self._sources(found))}
        arguments: dict[str, Argument] = {MARK: self.source}
        if types == {"quorum"}:
            # It has no dead-letter exchange or limits: messages that killed migrations return must not be
            # dropped.
            arguments |= {"x-queue-type": "quorum", "x-delivery-limit": _NO_LIMIT}
        else:
            arguments |= {"x-queue-type": "classic"}
        there = found.queues.get(self.interim_name)
        kind = None if there is None else _type(there.arguments)
        if kind is not None and kind != arguments["x-queue-type"]:
            # An earlier run for another target may have made it: it is used as it is.
            arguments = {MARK: self.source, "x-queue-type": kind}
            if kind == "quorum":
                arguments["x-delivery-limit"] = _NO_LIMIT
        return Queue(name=self.interim_name, arguments=MappingProxyType(arguments))

    def _sources(self, found: FoundTopology) -> Iterator[FoundQueue]:
        if (source := found.queues.get(self.source)) is not None:
            yield source


def plan(migration: QueueMigration, found: FoundTopology) -> tuple[Step, ...]:
    """Return the remaining steps; empty when the queue is as required."""
    source = found.queues.get(migration.source)
    target, old = migration.target, Queue(name=migration.source, arguments=_arguments(source))
    if not migration.in_place:
        if source is None:
            return ()
        return (
            Step(kind=StepKind.DECLARE, queue=target),
            Step(kind=StepKind.BIND, queue=target),
            Step(kind=StepKind.UNBIND, queue=old),
            Step(kind=StepKind.EMPTY, queue=old, into=target.name),
            Step(kind=StepKind.DELETE, queue=old),
        )
    interim = migration.interim(found)
    interim_is_there = interim.name in found.queues
    back = (
        Step(kind=StepKind.BIND, queue=target),
        Step(kind=StepKind.UNBIND, queue=interim),
        Step(kind=StepKind.MOVE, queue=interim, into=target.name),
        Step(kind=StepKind.DELETE, queue=interim),
    )
    if source is not None and same_arguments(source, target):
        return back if interim_is_there else ()
    if source is None:
        declared = Step(kind=StepKind.DECLARE, queue=target)
        # Without an interim queue there is nothing to migrate: `refusals` says so.
        return (Step(kind=StepKind.BIND, queue=interim), declared, *back) if interim_is_there else ()
    return (
        Step(kind=StepKind.DECLARE, queue=interim),
        Step(kind=StepKind.BIND, queue=interim),
        Step(kind=StepKind.UNBIND, queue=old),
        Step(kind=StepKind.EMPTY, queue=old, into=interim.name),
        Step(kind=StepKind.DELETE, queue=old),
        Step(kind=StepKind.DECLARE, queue=target),
        *back,
    )


def refusals(migration: QueueMigration, found: FoundTopology) -> tuple[TopologyDifference, ...]:
    """Return why it cannot be done, each with its remedy; empty when it can."""
    return (
        *_of_existence(migration, found),
        *_of_kind(migration, found),
        *_of_strangers(migration, found),
        *_of_policies(migration, found),
        *_of_permissions(migration, found),
    )


def same_arguments(found: FoundQueue, queue: Queue) -> bool:
    """Whether declaring `queue` would find it as it is."""
    arguments = {"x-queue-type": "classic", **found.arguments}
    return found.durable and arguments == {"x-queue-type": "classic", **queue.arguments}


def _of_existence(migration: QueueMigration, found: FoundTopology) -> Iterator[TopologyDifference]:
    for exchange in migration.topology.exchanges:
        there = found.exchanges.get(exchange.name)
        if there is None or there.kind != exchange.kind:
            what = "is missing" if there is None else f"is a {there.kind} exchange, has to be {exchange.kind}"
            yield TopologyDifference(
                object=f"exchange {exchange.name}", difference=what, remedy="solstice topology check"
            )
    dlx = migration.target.dead_letter_exchange
    if dlx in found.exchanges and not any(each.exchange == dlx for each in found.bindings):
        yield TopologyDifference(
            object=f"exchange {dlx}",
            difference="has no queue: dead letters that wait for one would end with the old queue",
            remedy=DECLARE,
        )
    sources = {
        migration.source,
        *([migration.interim_name] if migration.in_place else [migration.target.name]),
    }
    if not sources & found.queues.keys():
        yield TopologyDifference(
            object=f"queue {migration.source}",
            difference="is missing: there is nothing to migrate",
            remedy=DECLARE,
        )
    there_already = found.queues.get(migration.target.name)
    if not migration.in_place and there_already and not same_arguments(there_already, migration.target):
        yield TopologyDifference(
            object=f"queue {migration.target.name}",
            difference="exists with other arguments",
            remedy="migrate it first, without --from",
        )


def _of_kind(migration: QueueMigration, found: FoundTopology) -> Iterator[TopologyDifference]:
    source = found.queues.get(migration.source)
    if source is None:
        return
    kind = _type(source.arguments)
    for is_so, how, remedy in (
        (
            kind not in {"classic", "quorum"},
            f"is a {kind}: its messages stay when they are read",
            "give our queue another name (AMQP_QUEUE), and let the stream run empty",
        ),
        (source.exclusive, "is exclusive: it belongs to one connection", "end that connection"),
        (
            source.auto_delete,
            "is auto-delete: it could vanish with its messages in between",
            "let it run empty, stop the services, delete it, then: " + DECLARE,
        ),
    ):
        if is_so:
            yield TopologyDifference(object=f"queue {migration.source}", difference=how, remedy=remedy)


def _of_strangers(migration: QueueMigration, found: FoundTopology) -> Iterator[TopologyDifference]:
    """Refuses bindings to other exchanges: their messages would be lost."""
    expected = (migration.exchange.name, migration.routing_key)
    queues = {migration.source, migration.interim_name, migration.target.name}
    for binding in sorted(found.bindings, key=_label):
        if binding.queue in queues and (binding.exchange, binding.routing_key) != expected:
            yield TopologyDifference(
                object=_label(binding),
                difference="is not ours: its messages would find no queue, or its owner no messages",
                remedy="remove the binding, or leave the queue as it is",
            )
    interim = found.queues.get(migration.interim_name)
    if interim is not None and interim.arguments.get(MARK) != migration.source:
        yield TopologyDifference(
            object=f"queue {migration.interim_name}",
            difference=f"is not ours: it lacks {MARK}={migration.source}",
            remedy="rename or delete that queue: this name is needed in between",
        )


def _of_policies(migration: QueueMigration, found: FoundTopology) -> Iterator[TopologyDifference]:
    """Refuses limits of policies that would drop moved messages."""
    between = [migration.interim_name] if migration.in_place else []
    for name in (*between, migration.target.name):
        policy = found.policies.get(name, {})
        for limit, cost in LIMITS.items():
            tells = limit.startswith("max-length") and policy.get("overflow") in TELLS_PUBLISHER
            if limit in policy and not tells:
                yield TopologyDifference(
                    object=f"queue {name}",
                    difference=f"has {limit}={policy[limit]} from a policy: {cost}",
                    remedy=f"take {limit} out of the policy for the time of the migration",
                )


def _of_permissions(migration: QueueMigration, found: FoundTopology) -> Iterator[TopologyDifference]:
    if found.permissions is None:
        return
    names = [*(each.name for each in migration.topology.exchanges)]
    names += [*(each.name for each in migration.topology.queues), migration.lock_name]
    yield from missing_permissions(found.permissions, names, also_write=[DEFAULT_EXCHANGE])


def _label(binding: Binding) -> str:
    return f"binding {binding.exchange} -> {binding.queue} key {binding.routing_key!r}"


def _type(arguments: Mapping[str, object]) -> str:
    return str(arguments.get("x-queue-type", "classic"))


def _arguments(found: FoundQueue | None) -> Mapping[str, Argument]:
    arguments = {} if found is None else found.arguments
    return {name: value for name, value in arguments.items() if isinstance(value, str | int)}
