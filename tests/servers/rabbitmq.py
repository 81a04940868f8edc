"""The RabbitMQ that the tests run against; `own_rabbitmq` says where it comes from."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2

from tests.servers import rabbitmq_4
from tests.servers.apt import apt_can_install, apt_install
from tests.servers.docker import docker_answers
from tests.servers.rabbitmq_docker import RabbitMQContainer
from tests.servers.rabbitmq_node import Installation, RabbitMQNode
from tests.servers.rabbitmq_server import RabbitMQServer, Vhost

__all__ = ["FLAVOURS", "RabbitMQServer", "Vhost", "flavours", "own_rabbitmq", "shared_rabbitmq"]

URL_VARIABLE: Final = "SOLSTICE_TEST_AMQP_URL"
MANAGEMENT_VARIABLE: Final = "SOLSTICE_TEST_MANAGEMENT_URL"
DEFAULT: Final = "default"
FOUR: Final = "rabbitmq-4"
FLAVOURS: Final = (DEFAULT, FOUR)

NOTHING_FOUND: Final = f"""\
These tests need a real RabbitMQ, and there is none here. Any one of these will do:
  - Docker: start the daemon, so that `docker version` answers (image rabbitmq:4-management);
  - RabbitMQ on this machine: `apt-get install rabbitmq-server`, `dnf install rabbitmq-server` or
    `brew install rabbitmq`, so that `rabbitmq-server` is on PATH; it needs no running service;
  - on Debian or Ubuntu: run the tests as root, and they install the package themselves;
  - a server elsewhere: {URL_VARIABLE}=amqp://user:password@host:5672/%2f, with an administrator's rights
    (and {MANAGEMENT_VARIABLE}=http://user:password@host:15672, when its management page is not there)."""


class ForeignRabbitMQ(RabbitMQServer):
    """A foreign server: used, never stopped."""

    def __init__(self, amqp_url: str) -> None:
        address = urlsplit(amqp_url)
        user = f"{address.username or 'guest'}:{address.password or 'guest'}"
        management = os.environ.get(MANAGEMENT_VARIABLE, f"http://{user}@{address.hostname}:15672")
        super().__init__(version="", amqp_url=amqp_url, management_url=management.rstrip("/"))

    def start(self) -> None:
        self.version = str(self.api("GET", "overview")["rabbitmq_version"])
        if not self.amqp_answers():
            raise RuntimeError(f"{URL_VARIABLE}: no RabbitMQ answers there")

    def stop(self) -> None:
        raise RuntimeError(f"the server of {URL_VARIABLE} is not ours to stop; use the own_rabbitmq fixture")

    def kill(self) -> None:
        self.stop()

    def ctl(self, *arguments: str) -> str:
        raise RuntimeError(f"the server of {URL_VARIABLE} is not ours to steer; use the own_rabbitmq fixture")

    def close(self) -> None:
        """Leave it running: it existed before us."""


@cache
def flavours() -> tuple[Sequence[str], str | None]:
    """The RabbitMQs to test on, and why the newer one may be missing."""
    if _default_is_4():
        return (DEFAULT,), "the default RabbitMQ is a 4.x already"
    reason = rabbitmq_4.why_not()
    return ((DEFAULT, FOUR), None) if reason is None else ((DEFAULT,), reason)


def shared_rabbitmq(flavour: str, *, synced: bool = False) -> RabbitMQServer:
    """The server for tests that leave it running, not yet started. Enter it with `with`."""
    url = os.environ.get(URL_VARIABLE)
    if flavour == DEFAULT and url:
        return ForeignRabbitMQ(url)
    return own_rabbitmq(flavour, synced=synced)


def own_rabbitmq(flavour: str, *, synced: bool = False) -> RabbitMQServer:
    """A server for a test that stops, kills or alarms it, not yet started.

    Enter it with `with`.

    Docker, else the machine's own RabbitMQ, else the distribution's package, installed by us when we are root. `synced`
    has it write to a disk, as in production. Raises RuntimeError that says what to install when there is no way.
    """
    if flavour == FOUR:
        return RabbitMQNode(rabbitmq_4.installation(), synced=synced)
    if docker_answers():
        return RabbitMQContainer()
    return RabbitMQNode(rabbitmq_here(), synced=synced)


def rabbitmq_here() -> Installation:
    """The RabbitMQ of this machine, installed by us when we are root.

    Raises RuntimeError that says what to install when there is no way.
    """
    found = installed()
    if found is None and apt_can_install():
        apt_install("rabbitmq-server")
        found = installed()
    if found is None:
        raise RuntimeError(NOTHING_FOUND)
    return found


def installed() -> Installation | None:
    """The RabbitMQ of this machine."""
    # Debian's `rabbitmq-server` on PATH is a wrapper that works for the package's own service only.
    debian = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    on_path = shutil.which("rabbitmq-server")
    if debian.exists():
        server = debian
    elif on_path is not None:
        server = Path(on_path)
    else:
        return None
    # .../rabbitmq_server-3.10.8/sbin/rabbitmq-server, behind links; Homebrew: .../Cellar/rabbitmq/4.2.0/sbin/....
    version = server.resolve().parent.parent.name.rpartition("-")[2]
    return Installation(version=version, programs=server.parent)


def _default_is_4() -> bool:
    """Whether the default server will be a 4.x.

    As far as that is known without starting or installing it.
    """
    if os.environ.get(URL_VARIABLE):
        server = ForeignRabbitMQ(os.environ[URL_VARIABLE])
        # The tests find out whether it answers; the header must not fail because of it.
        with suppress(httpx2.HTTPError, OSError, RuntimeError):
            server.start()
            return server.major >= 4
        return False
    if docker_answers():
        return True
    found = installed()
    if found is not None:
        return int(found.version.partition(".")[0]) >= 4
    # apt-get will install what this distribution has: 4.x since Debian 13.
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    facts = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    newest = {"debian": 13, "ubuntu": 26}.get(facts.get("ID", ""))
    return newest is not None and float(facts.get("VERSION_ID", '"0"').strip('"')) >= newest
