"""Free ports for servers of the tests, all below 32768.

From 32768, Linux hands out ports for outgoing connections: a client that reconnects to a stopped server on such a port
can be given that very port for its own end, connect to itself, and keep the server from ever binding it again.
"""

import random
import socket

LOWEST, HIGHEST = 10_240, 22_000
"""The range of the ports.

RabbitMQ's command line listens ten thousand above the distribution port; that must stay below 32768 as well.
"""


def free_ports(count: int) -> list[int]:
    """So many different ports of 127.0.0.1 that no process listens on now."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
    return list(found)
