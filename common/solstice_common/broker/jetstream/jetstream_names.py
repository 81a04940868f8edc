"""Names the objects that represent a queue in JetStream. Pure."""

import re
from typing import Final

from solstice_common.errors import ConfigurationError

TOPOLOGY_BUCKET: Final = "solstice_topology"
"""The key-value bucket with the exchanges and bindings."""
TOPOLOGY_KEY: Final = "topology"
DURABLE: Final = "solstice"
"""The durable consumer of every stream: all processes share it."""
PRESENCE_PREFIX: Final = "solstice.presence."
_QUEUE: Final = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.ASCII)


def stream_of(queue: str) -> str:
    """Return the stream of a queue, whose only subject is the queue's name.

    A stream's name may hold no dots, so these become underscores; a queue's own underscores could then collide.
    Raises ConfigurationError for a name that cannot be a subject.
    """
    if _QUEUE.fullmatch(queue) is None:
        raise ConfigurationError(
            f"the queue {queue!r} cannot be a subject of NATS: use letters, digits and '-', in words joined by dots"
        )
    return queue.replace(".", "_")


def presence_subject(queue: str) -> str:
    """Return the subject on which the consumers of a queue answer what they hold."""
    return f"{PRESENCE_PREFIX}{queue}"
