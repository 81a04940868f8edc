"""Decides which queues a message reaches, since JetStream has no exchanges and bindings. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, get_args

from solstice_common.broker.protocol import Published, PublishStatus
from solstice_common.errors import TopologyMismatch
from solstice_common.topology import Topology

ExchangeKind = Literal["direct", "fanout"]
BindingParts = tuple[str, str, str]
"""Exchange, routing key, queue."""
_KINDS: Final = get_args(ExchangeKind)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Exchanges by name with their kind, and what is bound to them."""

    exchanges: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    bindings: frozenset[BindingParts] = frozenset()

    def including(self, topology: Topology) -> "RoutingTable":
        """Return the table with everything in `topology`; TopologyMismatch when an exchange is of another kind."""
        for exchange in topology.exchanges:
            found = self.exchanges.get(exchange.name, exchange.kind)
            if found != exchange.kind:
                raise TopologyMismatch("exchange", exchange.name, {"type": exchange.kind}, f"type={found!r}")
        return RoutingTable(
            {**self.exchanges, **{exchange.name: exchange.kind for exchange in topology.exchanges}},
            self.bindings | {(each.exchange, each.routing_key, each.queue) for each in topology.bindings},
        )

    def route(self, exchange: str, routing_key: str) -> tuple[str, ...] | Published:
        """Return the queues of a message, ordered by name, or why it has none."""
        kind = self.exchanges.get(exchange)
        if kind is None:
            return Published(PublishStatus.REJECTED, f"there is no exchange {exchange!r}: declare it first")
        queues = tuple(
            sorted(
                queue
                for bound, key, queue in self.bindings
                if bound == exchange and (kind == "fanout" or key == routing_key)
            )
        )
        if queues:
            return queues
        return Published(
            PublishStatus.UNROUTABLE, f"no queue is bound to {exchange!r} with the key {routing_key!r}"
        )

    def encode(self) -> bytes:
        """Return the table as the server stores it."""
        document = {
            "exchanges": dict(sorted(self.exchanges.items())),
            "bindings": [list(binding) for binding in sorted(self.bindings)],
        }
        return json.dumps(document, separators=(",", ":")).encode()


def read_table(text: bytes | None) -> RoutingTable:
    """Return the table that the server stores, empty without one. Raises ValueError for anything else."""
    if not text:
        return RoutingTable()
    document = json.loads(text)
    try:
        exchanges = {str(name): str(kind) for name, kind in document["exchanges"].items()}
        bindings = frozenset(
            (str(exchange), str(key), str(queue)) for exchange, key, queue in document["bindings"]
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no exchanges and bindings: {error!r}") from None
    if not set(exchanges.values()) <= set(_KINDS):
        raise ValueError(f"unknown kinds of exchanges: {sorted(set(exchanges.values()) - set(_KINDS))}")
    return RoutingTable(exchanges, bindings)
