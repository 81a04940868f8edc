"""The roles of a broker's users: what each does there."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Role(StrEnum):
    """One kind of user."""

    FORGE_INTEGRATION = "forge-integration"
    ORCHESTRATOR = "orchestrator"
    PUBLISHER = "publisher"
    OPERATOR = "operator"
    ADMIN = "admin"
    MONITORING = "monitoring"


PURPOSES: Final[Mapping[Role, str]] = MappingProxyType(
    {
        Role.FORGE_INTEGRATION: "publishes requests and cancels, reads statuses",
        Role.ORCHESTRATOR: "reads requests and cancels, publishes statuses and dead letters",
        Role.PUBLISHER: "publishes requests: solstice enqueue, or a program of yours",
        Role.OPERATOR: "reads, replays and removes dead letters: solstice dlq, the pages",
        Role.ADMIN: "declares and compares the topology: solstice topology declare, check",
        Role.MONITORING: "compares the topology: solstice topology check",
    }
)
