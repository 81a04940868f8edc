"""Lists the dead-letter queues, and the route of a replay from each. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, Route, jobs_route, split_jobs_route

REQUESTS_KIND: Final = "requests"
CANCELS_KIND: Final = "cancels"
STATUSES_KIND: Final = "statuses"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRoute:
    """A dead-letter queue, and how its messages are published again."""

    kind: str
    """`requests`, `cancels` or `statuses`."""
    priority: Priority | None = None
    """The class whose requests it holds; None for all classes together."""
    queue: str
    """Where its messages were refused."""
    dlq: str
    replays: Route
    """The route of its messages when they are published again, each by its class."""
    is_declared: bool = True
    """False: no service declares it, but it may be left from AMQP_PRIORITIES=split."""

    @property
    def name(self) -> str:
        """A short name for people: `requests`, or `requests.high` of a class."""
        return self.kind if self.priority is None else f"{self.kind}.{self.priority}"


def dead_letter_routes(settings: BrokerSettings) -> Sequence[DeadLetterRoute]:
    """Return every dead-letter queue there may be; of each kind, that of v1 first."""
    jobs, is_split = jobs_route(settings), settings.amqp_priorities == "split"
    classes = split_jobs_route(settings).classes
    return [
        DeadLetterRoute(
            kind=REQUESTS_KIND,
            priority=Priority.DEFAULT if is_split else None,
            queue=jobs.queue,
            dlq=jobs.dlq,
            replays=jobs,
        ),
        *(
            DeadLetterRoute(
                kind=REQUESTS_KIND,
                priority=priority,
                queue=route.queue,
                dlq=route.dlq,
                replays=jobs,
                is_declared=is_split,
            )
            for priority, route in classes.items()
        ),
        DeadLetterRoute(kind=CANCELS_KIND, queue=CANCELS.queue, dlq=CANCELS.dlq, replays=CANCELS),
        DeadLetterRoute(kind=STATUSES_KIND, queue=STATUSES.queue, dlq=STATUSES.dlq, replays=STATUSES),
    ]


def chosen_routes(settings: BrokerSettings, names: Sequence[str]) -> Sequence[DeadLetterRoute]:
    """Return the dead-letter queues of these names; all without a name.

    A name is a kind, a short name, a queue or a dead-letter queue. ConfigurationError for any other name.
    """
    routes = dead_letter_routes(settings)
    chosen: dict[str, DeadLetterRoute] = {}
    for name in names:
        found = [each for each in routes if name in {each.kind, each.name, each.queue, each.dlq}]
        if not found:
            known = ", ".join(f"{each.name} ({each.dlq})" for each in routes if each.is_declared)
            raise ConfigurationError(f"--queue: there is no dead-letter queue {name!r}; there are {known}")
        chosen |= {each.dlq: each for each in found}
    return list(chosen.values()) if names else routes


def import_queue(settings: BrokerSettings, name: str) -> str:
    """Return the dead-letter queue that an import under this name adds to.

    It is one that the services declare.     ConfigurationError for an unknown name.
    """
    first = chosen_routes(settings, [name])[0]
    return first.dlq if first.is_declared else first.replays.dlq
