"""RabbitMQ 4 from a newer Debian, on a Debian that has an older one."""

import os
from pathlib import Path
from typing import Final

from tests.servers.newer_debian import newer_debian
from tests.servers.newer_debian import why_not as why_no_newer_debian
from tests.servers.rabbitmq_node import Installation

SWITCH: Final = "SOLSTICE_TEST_RABBITMQ_4"


def why_not() -> str | None:
    """Why RabbitMQ 4 cannot run beside the default one; None when it can."""
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0"
    return why_no_newer_debian()


def installation() -> Installation:
    """The RabbitMQ of that Debian, installed when it is missing."""
    root = newer_debian("rabbitmq-server")
    (server,) = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
    return Installation(
        version=server.name.partition("-")[2], programs=Path("/usr/lib/rabbitmq/bin"), root=root
    )
