"""Free ports for servers of the tests, all below 32768.

From 32768, Linux hands out ports for outgoing connections: a client that reconnects to a stopped server on such a port
can be given that very port for its own end, connect to itself, and keep the server from ever binding it again.
"""

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

LOWEST, HIGHEST = 10_240, 20_200
"""The range of the ports.

RabbitMQ's command line listens ten thousand above the distribution port: below 32768 as well, and on none of these.
"""
_LAST: Final = Path(tempfile.gettempdir()) / f"solstice-test-port-{os.getuid()}"
"""The port that was given out last, to any process: a server that starts late, or again, finds its port free."""


def free_ports(count: int) -> list[int]:
    """So many different ports of 127.0.0.1 that no process listens on now.

    They are given out in turn, by all tests of this machine: none comes again before all others.
    """
    found: list[int] = []
    with os.fdopen(os.open(_LAST, os.O_RDWR | os.O_CREAT, 0o600), "r+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        port = int(last.read() or LOWEST)
        while len(found) < count:
            port = port + 1 if LOWEST <= port < HIGHEST else LOWEST
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            found.append(port)
        last.seek(0)
        last.write(f"{port:05}")
    return found
