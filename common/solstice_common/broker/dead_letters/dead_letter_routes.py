"""Lists the dead-letter queues, and the route of a replay from each. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from solstice_common.errors import ConfigurationError
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, Route, jobs_route

REQUESTS: Final = "requests"
CANCELLATIONS: Final = "cancels"
REPORTS: Final = "statuses"


def dead_letter_routes(settings: BrokerSettings) -> Mapping[str, Route]:
    """Every route with dead letters, by a short name for people."""
    return {REQUESTS: jobs_route(settings), CANCELLATIONS: CANCELS, REPORTS: STATUSES}


def chosen_routes(settings: BrokerSettings, names: Sequence[str]) -> Sequence[Route]:
    """The routes of these names: short ones, queues or dead-letter queues; all without a name.

    ConfigurationError for any other name.
    """
    routes = dead_letter_routes(settings)
    chosen: dict[str, Route] = {}
    for name in names:
        found = [each for short, each in routes.items() if name in {short, each.queue, each.dlq}]
        if not found:
            known = ", ".join(f"{short} ({each.dlq})" for short, each in routes.items())
            raise ConfigurationError(f"--queue: there is no dead-letter queue {name!r}; there are {known}")
        chosen[found[0].dlq] = found[0]
    return list(chosen.values()) if names else list(routes.values())
