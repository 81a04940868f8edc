"""The permissions of RabbitMQ that each role needs, and the commands that grant them. Pure.

Source: rabbitmq.com/docs/access-control (what each operation asks for), rabbitmq.com/docs/management#permissions.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, Route, full_topology, jobs_route

DEFAULT_EXCHANGE: Final = "amq.default"
"""The name under which permissions know the exchange that every queue is bound to."""
MANAGEMENT: Final = "management"
"""The tag with which a user may ask the management API."""
NONE: Final = frozenset[str]()
NOTHING: Final = "^$"
"""The expression that no name matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQRights:
    """The exchanges and queues that a user may configure, write and read."""

    configure: frozenset[str] = field(default=NONE)
    write: frozenset[str] = field(default=NONE)
    read: frozenset[str] = field(default=NONE)
    tags: frozenset[str] = field(default=NONE)

    def __or__(self, other: "RabbitMQRights") -> "RabbitMQRights":
        """Return the rights of both."""
        return RabbitMQRights(
            configure=self.configure | other.configure,
            write=self.write | other.write,
            read=self.read | other.read,
            tags=self.tags | other.tags,
        )

    def names(self) -> Mapping[str, Sequence[str]]:
        """Return the names under each right, sorted."""
        return {
            "configure": sorted(self.configure),
            "write": sorted(self.write),
            "read": sorted(self.read),
        }

    def expressions(self) -> Mapping[str, str]:
        """Return the regular expression of each right, which matches exactly its names."""
        return {right: expression(names) for right, names in self.names().items()}

    def commands(self, user: str, vhost: str) -> Sequence[str]:
        """Return the commands that make such a user. The first one asks for its password."""
        granted = " ".join(f"'{each}'" for each in self.expressions().values())
        return [
            f"rabbitmqctl add_user {shlex.quote(user)}",
            f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} {granted}",
            *(f"rabbitmqctl set_user_tags {shlex.quote(user)} {tag}" for tag in sorted(self.tags)),
        ]


def expression(names: Iterable[str]) -> str:
    """Return the regular expression that matches these names alone."""
    escaped = [re.escape(name).replace("\\-", "-") for name in names]
    if not escaped:
        return NOTHING
    return f"^({'|'.join(escaped)})$" if len(escaped) > 1 else f"^{escaped[0]}$"


def rabbitmq_rights(role: Role, settings: BrokerSettings) -> RabbitMQRights:
    """Return the rights of one role under the names that the settings give.

    Services do not declare: the admin has done so. With the rights of `admin` as well they do it themselves.
    """
    jobs = jobs_route(settings)
    match role:
        case Role.FORGE_INTEGRATION:
            return RabbitMQRights(
                write=frozenset({jobs.exchange, CANCELS.exchange, STATUSES.dlx}),
                read=frozenset({STATUSES.queue}),
            )
        case Role.ORCHESTRATOR:
            requests = [*_with_classes(jobs), CANCELS]
            return RabbitMQRights(
                write=frozenset({*(each.dlx for each in requests), STATUSES.exchange}),
                read=frozenset(each.queue for each in requests),
            )
        case Role.PUBLISHER:
            return RabbitMQRights(write=frozenset({jobs.exchange}))
        case Role.OPERATOR:
            return RabbitMQRights(
                # Replays go to the exchange of their kind, imports and copies to the queue itself.
                write=frozenset({jobs.exchange, CANCELS.exchange, STATUSES.exchange, DEFAULT_EXCHANGE}),
                read=frozenset(each.dlq for each in [*_with_classes(jobs), CANCELS, STATUSES]),
            )
        case Role.ADMIN:
            return _declaring(settings)
        case Role.MONITORING:
            return RabbitMQRights(tags=frozenset({MANAGEMENT}))


def _declaring(settings: BrokerSettings) -> RabbitMQRights:
    """Return the rights to bind a queue.

    Who binds a queue writes to it and reads its exchange; a dead-letter exchange needs both the other way round.
    """
    topology = full_topology(settings)
    queues, exchanges = {each.name for each in topology.queues}, {each.name for each in topology.exchanges}
    with_dlx = {each.name for each in topology.queues if each.dead_letter_exchange is not None}
    dead = {each.dead_letter_exchange for each in topology.queues if each.dead_letter_exchange is not None}
    return RabbitMQRights(
        configure=frozenset(queues | exchanges),
        write=frozenset(queues | dead),
        read=frozenset(exchanges | with_dlx),
        tags=frozenset({MANAGEMENT}),
    )


def _with_classes(route: Route) -> Sequence[Route]:
    return [route, *route.classes.values()]
