"""Compares a broker with the expected topology; names each difference with its remedy. Pure.

Sources: rabbitmq.com/docs/parameters (which policy applies), rabbitmq.com/docs/quorum-queues (dead-letter-strategy,
overflow, delivery-limit), rabbitmq.com/docs/ae, rabbitmq.com/docs/access-control (what each operation asks for).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from solstice_common.topology import Binding, Exchange, Queue, Topology

NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
NO_TOPOLOGY: Final = Topology(exchanges=(), queues=(), bindings=())
DECLARE: Final = "solstice topology declare"
LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "message-ttl": "messages that wait longer leave the queue unread",
        "expires": "the queue and all in it vanish when nothing uses it for a while",
        "max-length": "a full queue drops its oldest message without a word",
        "max-length-bytes": "a full queue drops its oldest message without a word",
    }
)
"""Limits that can lose a message, and how; each is an argument (with `x-`) or a policy's key."""
TELLS_PUBLISHER: Final = frozenset({"reject-publish", "reject-publish-dlx"})
"""Overflow behaviours with which a full queue rejects publishes."""
DEFAULT_DELIVERY_LIMIT: Final = 20
LIMITS_DELIVERIES_SINCE: Final = 4
"""The major version since which a quorum queue has that limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundExchange:
    """An exchange on the broker, with the policy that applies to it."""

    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    policy: Mapping[str, object] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundQueue:
    """A queue on the broker, with the policy that applies to it."""

    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    policy: Mapping[str, object] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The permissions of a user of the broker: one regular expression per operation."""

    user: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopology:
    """The objects of a topology that exist on a broker."""

    exchanges: Mapping[str, FoundExchange]
    queues: Mapping[str, FoundQueue]
    bindings: frozenset[Binding]
    policies: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: MappingProxyType({}))
    """The policies that a queue of a name has or would have, for either type."""
    permissions: Permissions | None = None
    """None: the broker has no permissions, or did not show them."""
    major_version: int | None = None
    """RabbitMQ's major version; None for a broker without policies and limits."""
    unknown: tuple[str, ...] = ()
    """What the broker did not show, each as a sentence with its reason."""
    drifts: "tuple[TopologyDifference, ...]" = ()
    """Differences that only the broker's own reader can find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDifference:
    """One difference: its object, what differs, what that costs, and the remedy."""

    object: str
    """Kind and name: `queue solstice.jobs.v1`."""
    difference: str
    remedy: str


def topology_differences(
    topology: Topology, found: FoundTopology, *, left: Topology = NO_TOPOLOGY
) -> tuple[TopologyDifference, ...]:
    """Return the differences in this order: exchanges, queues, the broker's own, bindings, permissions.

    `left` is what may be left from AMQP_PRIORITIES=split; `found` must have been read for it, too.
    """
    return (
        *(each for exchange in topology.exchanges for each in _of_exchange(exchange, found)),
        *(each for queue in topology.queues for each in _of_queue(queue, found)),
        *_of_left(topology, found, left),
        *found.drifts,
        *_of_bindings(topology, found, left),
        *_of_permissions(topology, found.permissions),
    )


def effective_policy(
    kind: str, name: str, policies: Iterable[Mapping[str, object]], queue_type: str = ""
) -> Mapping[str, object]:
    """Return the definition of the matching policy with the highest priority; empty without one.

    `policies` are as the management API lists them. `kind` is `exchanges` or `queues`.
    """
    applies = {"all", kind, f"{queue_type}_queues"}
    matching = [
        policy
        for policy in policies
        if policy.get("apply-to", "all") in applies and matches(str(policy.get("pattern", "")), name)
    ]
    if not matching:
        return NOTHING
    definition = max(matching, key=_priority)["definition"]
    return definition if isinstance(definition, Mapping) else NOTHING


def merged_policy(policy: Mapping[str, object], operator: Mapping[str, object]) -> Mapping[str, object]:
    """Return a policy under an operator's, which only lowers limits."""
    return {**policy, **{key: _lower(policy.get(key), value) for key, value in operator.items()}}


def _priority(policy: Mapping[str, object]) -> int:
    priority = policy.get("priority", 0)
    return priority if isinstance(priority, int) else 0


def _lower(declared: object, on_broker: object) -> object:
    return min(declared, on_broker) if isinstance(declared, int) and isinstance(on_broker, int) else on_broker


def matches(pattern: str, name: str) -> bool:
    """Return whether RabbitMQ finds the regular expression in the name."""
    # The broker uses Erlang's expressions; one that Python cannot read counts as matching nothing.
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _of_exchange(exchange: Exchange, found: FoundTopology) -> Iterator[TopologyDifference]:
    label, there = f"exchange {exchange.name}", found.exchanges.get(exchange.name)
    if there is None:
        yield TopologyDifference(object=label, difference="is missing", remedy=DECLARE)
        return
    recreate = f"stop the services, delete the exchange, then: {DECLARE}"
    if there.kind != exchange.kind:
        yield TopologyDifference(
            object=label, difference=f"is a {there.kind} exchange, has to be {exchange.kind}", remedy=recreate
        )
    if not there.durable or there.auto_delete:
        how = "auto-delete" if there.auto_delete else "not durable"
        yield TopologyDifference(
            object=label, difference=f"is {how}: it vanishes, and publishing ends until then", remedy=recreate
        )
    if there.internal:
        yield TopologyDifference(
            object=label, difference="is internal: no service may publish to it", remedy=recreate
        )
    alternate = there.policy.get("alternate-exchange") or there.arguments.get("alternate-exchange")
    if alternate is not None:
        yield TopologyDifference(
            object=label,
            difference=f"has the alternate exchange {alternate!r}: what no queue takes counts as routed, and is lost there",
            remedy="take alternate-exchange out of the policy"
            if "alternate-exchange" in there.policy
            else recreate,
        )


def _of_queue(queue: Queue, found: FoundTopology) -> Iterator[TopologyDifference]:
    label, there = f"queue {queue.name}", found.queues.get(queue.name)
    if there is None:
        yield TopologyDifference(object=label, difference="is missing", remedy=DECLARE)
        return
    recreate = f"let it run empty, stop the services, delete the queue, then: {DECLARE}"
    for is_so, how in (
        (not there.durable, "not durable: it ends with the server"),
        (there.auto_delete, "auto-delete: it ends with its last consumer"),
        (there.exclusive, "exclusive: it ends with its connection"),
    ):
        if is_so:
            yield TopologyDifference(object=label, difference=f"is {how}", remedy=recreate)
    yield from _of_arguments(label, queue, there, recreate)
    yield from _of_limits(label, queue, there, found.major_version)


def _of_left(topology: Topology, found: FoundTopology, left: Topology) -> Iterator[TopologyDifference]:
    """Queues that services read only with another setting."""
    for queue in left.queues:
        is_read = queue.dead_letter_exchange is not None
        if is_read and queue not in topology.queues and queue.name in found.queues:
            yield TopologyDifference(
                object=f"queue {queue.name}",
                difference="is of AMQP_PRIORITIES=split, which is not set here",
                remedy="set it; or restart an orchestrator, which takes what is there, then delete the queue",
            )


def _of_arguments(label: str, queue: Queue, there: FoundQueue, recreate: str) -> Iterator[TopologyDifference]:
    declared, on_broker = dict(queue.arguments), dict(there.arguments)
    type_declared, type_on_broker = (
        declared.pop("x-queue-type", "classic"),
        on_broker.pop("x-queue-type", "classic"),
    )
    if type_declared != type_on_broker:
        yield TopologyDifference(
            object=label,
            difference=f"is a {type_on_broker} queue, has to be {type_declared}",
            remedy=f"set AMQP_QUEUE_TYPE={type_on_broker} for all services; or {recreate}",
        )
    for name in sorted({*declared, *on_broker}):
        if declared.get(name) != on_broker.get(name):
            cost = LIMITS.get(name.removeprefix("x-"), "") if name not in declared else ""
            difference = f"has {_shown(on_broker, name)}, has to have {_shown(declared, name)}"
            yield TopologyDifference(
                object=label, difference=difference + (f": {cost}" if cost else ""), remedy=recreate
            )


def _shown(arguments: Mapping[str, object], name: str) -> str:
    return f"{name}={arguments[name]}" if name in arguments else f"no {name}"


def _of_limits(
    label: str, queue: Queue, there: FoundQueue, major_version: int | None
) -> Iterator[TopologyDifference]:
    # The policy's overflow overrides the argument's (rabbit_quorum_queue); of two limits, the lower one
    # applies.
    overflow = there.policy.get("overflow", there.arguments.get("x-overflow", "drop-head"))
    for limit, cost in LIMITS.items():
        is_length = limit.startswith("max-length")
        if limit not in there.policy or (is_length and overflow in TELLS_PUBLISHER):
            continue
        yield TopologyDifference(
            object=label,
            difference=f"has {limit}={there.policy[limit]} from a policy: {cost}",
            remedy=f"take {limit} out of the policy{', or set overflow to reject-publish' if is_length else ''}",
        )
    in_policy = there.policy.get("overflow")
    if in_policy is not None and queue.arguments.get("x-overflow") not in {None, in_policy}:
        yield TopologyDifference(
            object=label,
            difference=f"has overflow={in_policy} from a policy: dead letters are handed on at most once",
            remedy="take overflow out of the policy",
        )
    yield from _of_delivery_limit(label, queue, there, major_version)


def _of_delivery_limit(
    label: str, queue: Queue, there: FoundQueue, major_version: int | None
) -> Iterator[TopologyDifference]:
    """Compare delivery limits: a dead-letter queue drops what reaches it, others pass it on."""
    if queue.dead_letter_exchange is not None or there.arguments.get("x-queue-type") != "quorum":
        return
    limit = there.policy.get("delivery-limit", there.arguments.get("x-delivery-limit"))
    if limit is None and (major_version or 0) >= LIMITS_DELIVERIES_SINCE:
        limit = DEFAULT_DELIVERY_LIMIT
    if not isinstance(limit, int) or limit < 0:
        return
    pattern = f"^{re.escape(queue.name)}$"
    yield TopologyDifference(
        object=label,
        difference=f"drops a dead letter whose readers died {limit} times (delivery-limit)",
        remedy=f"rabbitmqctl set_policy -p VHOST --apply-to queues --priority 10 {queue.name} '{pattern}' "
        """'{"delivery-limit": -1}'""",
    )


def _of_bindings(topology: Topology, found: FoundTopology, left: Topology) -> Iterator[TopologyDifference]:
    declared, exchanges = set(topology.bindings), {exchange.name for exchange in topology.exchanges}
    for binding in topology.bindings:
        exists = binding.exchange in found.exchanges and binding.queue in found.queues
        if exists and binding not in found.bindings:
            yield TopologyDifference(object=_binding(binding), difference="is missing", remedy=DECLARE)
    queues = {queue.name for queue in topology.queues}
    for binding in sorted(found.bindings - declared - {*left.bindings}, key=_binding):
        if binding.exchange in exchanges:
            what = "copies of our messages go to a queue that is not ours"
            if binding.queue in queues:
                what = "messages of another key, or of another exchange of Solstice CI, reach the queue"
        elif binding.queue in queues and binding.exchange:
            what = "messages of an exchange that is not ours reach the queue"
        else:
            continue
        yield TopologyDifference(
            object=_binding(binding), difference=f"is not ours: {what}", remedy="remove the binding"
        )


def _binding(binding: Binding) -> str:
    return f"binding {binding.exchange} -> {binding.queue} key {binding.routing_key!r}"


def _of_permissions(topology: Topology, permissions: Permissions | None) -> Iterator[TopologyDifference]:
    """Compare permissions: declaring a queue with a dead-letter exchange needs all three."""
    if permissions is None:
        return
    names = [each.name for each in topology.exchanges] + [each.name for each in topology.queues]
    yield from missing_permissions(permissions, names)


def missing_permissions(
    permissions: Permissions, names: Sequence[str], *, also_write: Sequence[str] = ()
) -> Iterator[TopologyDifference]:
    """Yield the permissions for the objects of these names that the user lacks."""
    for kind, pattern, objects in (
        ("configure", permissions.configure, names),
        ("write", permissions.write, [*names, *also_write]),
        ("read", permissions.read, names),
    ):
        missing = [name for name in objects if not pattern or not matches(pattern, name)]
        if missing:
            yield TopologyDifference(
                object=f"user {permissions.user}",
                difference=f"may not {kind} {', '.join(missing)} (its expression: {pattern!r})",
                remedy=f"let the {kind} expression of the user match those names: rabbitmqctl set_permissions",
            )
