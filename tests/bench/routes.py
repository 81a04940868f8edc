"""An exchange and queues for each round, so that no round sees messages of another."""

from solstice_common.settings import BrokerSettings
from solstice_common.topology import Route, jobs_route


def route_named(name: str) -> Route:
    """The jobs route under names that begin with `name`."""
    return jobs_route(
        BrokerSettings(
            amqp_exchange=f"{name}.exchange",
            amqp_queue=f"{name}.queue",
            amqp_dlx=f"{name}.dlx",
            amqp_dlq=f"{name}.dlq",
        )
    )
