"""Say where a job's proxy listens, which files it has, and its results. Pure."""

from enum import StrEnum
from typing import Final

ADDRESS: Final = "127.0.0.1"
PORT: Final = 3128
"""Where proxies usually listen. It is in the network of the job, so no other job has it."""
FILE: Final = "egress.json"
"""What the proxy gets to know, in the directory of the attempt."""
COUNTS: Final = "egress"
"""What it counts, there too."""


class EgressResult(StrEnum):
    """What became of a request to the proxy; a closed list."""

    CONNECTED = "connected"
    HOST_REFUSED = "host_refused"
    """The operator does not allow the host, or the port."""
    ADDRESS_REFUSED = "address_refused"
    """The host has an address that is private, or of the machine itself."""
    UNREACHABLE = "unreachable"
    """The host has no address, or takes no connection."""
    MALFORMED = "malformed"
    """It is no request to a proxy, or came too slowly."""
    LIMIT_REACHED = "limit_reached"
    """The job had moved all the bytes that it may; also a connection that ended for that."""
