"""A private RabbitMQ node, which ends with the test run that started it.

It has its own ports, epmd and temporary directory.

Source: rabbitmq.com/docs/configure#supported-environment-variables.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.servers.guarded_process import GuardedProcess
from tests.servers.ports import free_ports
from tests.servers.rabbitmq_server import RabbitMQServer
from tests.servers.scratch import scratch_folder

_CONFIGURATION = """\
listeners.tcp.local = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
log.console = false
log.file.level = info
disk_free_limit.absolute = 50MB
raft.wal_max_size_bytes = 16777216
collect_statistics_interval = 1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The place of RabbitMQ's programs on this machine."""

    version: str
    programs: Path
    """The directory of `rabbitmq-server` and `rabbitmqctl`, as seen from inside `root`."""
    root: Path | None = None
    """The folder of the Debian that holds them, when it is not this machine's own."""

    def command(self, directory: Path, program: str, *arguments: str) -> list[str]:
        """The command line of `program` for the node that lives in `directory`."""
        inside = [str(self.programs / program), *arguments]
        if self.root is None:
            return inside
        # The mounts belong to a namespace of their own: they end with its last process in any case, and deleting the
        # folder can never reach through them.
        enter = (
            'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --bind "$2" "$1/mnt" '
            '&& root=$1 && shift 2 && exec chroot --userspec=rabbitmq:rabbitmq "$root" "$@"'
        )
        namespace = ["unshare", "--mount", "--propagation", "private"]
        return [*namespace, "sh", "-ec", enter, "sh", str(self.root), str(directory), *inside]

    def seen(self, directory: Path) -> Path:
        """The node's own path of its `directory`."""
        return directory if self.root is None else Path("/mnt")

    def give(self, directory: Path) -> None:
        """Make the node's user the owner of everything in `directory`."""
        if self.root is None:
            return
        for line in (self.root / "etc/passwd").read_text().splitlines():
            name, _, uid, gid, *_ = line.split(":")
            if name == "rabbitmq":
                for path in [directory, *directory.rglob("*")]:
                    os.chown(path, int(uid), int(gid))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node is: all that another process needs to use it."""

    installation: Installation
    directory: Path
    amqp: int
    management: int
    distribution: int
    epmd: int


class PlacedRabbitMQ(RabbitMQServer):
    """A RabbitMQ in a directory of this machine."""

    def __init__(self, place: NodePlace) -> None:
        self.place = place
        self.directory = place.directory
        super().__init__(
            version=place.installation.version,
            amqp_url=f"amqp://guest:guest@127.0.0.1:{place.amqp}/%2f",
            management_url=f"http://guest:guest@127.0.0.1:{place.management}",
        )

    @property
    def name(self) -> str:
        """The node's name in its cluster."""
        return f"solstice-{self.place.amqp}@localhost"

    @property
    def port(self) -> int:
        """The port of AMQP."""
        return self.place.amqp

    @property
    def pid(self) -> int:
        """The process of the node while it runs."""
        return int((self.directory / "pid").read_text())

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl ARGUMENTS`; return its output."""
        ran = subprocess.run(
            self.place.installation.command(self.directory, "rabbitmqctl", *arguments),
            env=self._environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)} failed:\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def ctl_script(self) -> str:
        """A shell script that is this node's `rabbitmqctl`."""
        command = shlex.join(self.place.installation.command(self.directory, "rabbitmqctl"))
        settings = shlex.join(f"{name}={value}" for name, value in self._environment().items())
        return f'#!/bin/sh\ncd / && exec env {settings} {command} "$@"\n'

    def _environment(self) -> dict[str, str]:
        here = self.place.installation.seen(self.directory)
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(here / "home"),
            "ERL_EPMD_PORT": str(self.place.epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Idle schedulers must not spin on a machine that runs the tests as well.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.place.amqp),
            "RABBITMQ_DIST_PORT": str(self.place.distribution),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(here / "empty"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
        }


class RabbitMQNode(PlacedRabbitMQ):
    """A node of `installation` for us alone; open it with `with`."""

    def __init__(
        self,
        installation: Installation,
        *,
        synced: bool = False,
        settings: Mapping[str, str] | None = None,
        epmd_port: int | None = None,
        cookie: str | None = None,
    ) -> None:
        """Nodes of one cluster share the port of their epmd, and the cookie."""
        amqp, management, distribution, own_epmd = free_ports(4)
        super().__init__(
            NodePlace(
                installation=installation,
                directory=scratch_folder("rabbitmq", synced=synced),
                amqp=amqp,
                management=management,
                distribution=distribution,
                epmd=epmd_port or own_epmd,
            )
        )
        self._process = GuardedProcess(f"RabbitMQ {installation.version}", self.directory)
        for folder in ("home", "data", "log"):
            (self.directory / folder).mkdir()
        configuration = _CONFIGURATION.format(amqp=amqp, management=management)
        extra = "".join(f"{key} = {value}\n" for key, value in (settings or {}).items())
        (self.directory / "rabbitmq.conf").write_text(configuration + extra)
        (self.directory / "empty").touch()
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        if cookie is not None:
            secret = self.directory / "home" / ".erlang.cookie"
            secret.write_text(cookie)
            secret.chmod(0o400)
        installation.give(self.directory)

    def start(self) -> None:
        """Start the node and return when both its AMQP and its management port answer."""
        command = self.place.installation.command(self.directory, "rabbitmq-server")
        self._process.start(command, environment=self._environment(), answers=self._answers)

    def stop(self) -> None:
        """Stop the node as an operator does; its data remain."""
        self._process.end(b"stop\n")

    def kill(self) -> None:
        """SIGKILL the node; its data remain as they are on the disk."""
        self._process.end(b"kill\n")

    def freeze(self) -> None:
        self._process.freeze()

    def thaw(self) -> None:
        self._process.thaw()

    def close(self) -> None:
        """Stop the node and remove everything it wrote."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        # A question to the other port takes milliseconds of a processor, and a start takes many of them.
        if not self.amqp_answers():
            return False
        try:
            self.api("GET", "overview")
        except (httpx2.HTTPError, OSError):
            return False
        return True


class JoinedRabbitMQ(PlacedRabbitMQ):
    """A node that another process of this run has started and will end."""

    def start(self) -> None:
        """It runs."""

    def stop(self) -> None:
        raise RuntimeError("all processes of the run share this node; use the own_rabbitmq fixture")

    def kill(self) -> None:
        self.stop()

    def close(self) -> None:
        """Leave it to its owner."""
