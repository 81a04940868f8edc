"""What a test can ask of any RabbitMQ."""

import socket
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx2

from tests.servers.server import TLS, Server


class RabbitMQServer(Server):
    """A RabbitMQ with its management plugin."""

    def __init__(self, *, version: str, amqp_url: str, management_url: str) -> None:
        self.version = version
        """The version, such as `4.0.5`."""
        self.amqp_url = amqp_url
        """The AMQP URL with user, password and the given vhost."""
        self.management_url = management_url
        """The management URL with user and password, without a trailing slash."""

    @abstractmethod
    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl ARGUMENTS`; return its output."""

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def raise_alarm(self, resource: Literal["memory", "disk"]) -> None:
        """Raise the memory or disk alarm of the whole server, which blocks publishers."""
        if resource == "memory":
            self.ctl("set_vm_memory_high_watermark", "0")
        else:
            self.ctl("set_disk_free_limit", "1000000GB")

    def clear_alarm(self, resource: Literal["memory", "disk"]) -> None:
        """Clear both alarms."""
        if resource == "memory":
            self.ctl("set_vm_memory_high_watermark", "0.4")
        else:
            self.ctl("set_disk_free_limit", "50MB")

    def url(self, vhost: str) -> str:
        """The AMQP URL of one vhost."""
        return urlsplit(self.amqp_url)._replace(path=f"/{quote(vhost, safe='')}").geturl()

    def api(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Call the management API under `/api/`.

        Returns the decoded answer, or None when it has no content.
        """
        answer = httpx2.request(
            method,
            f"{self.management_url}/api/{path}",
            json=body,
            timeout=10.0,
            trust_env=False,
            verify=TLS,
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def amqp_answers(self) -> bool:
        """Whether the AMQP port sends Connection.Start (class 10 method 10)."""
        address = urlsplit(self.amqp_url)
        try:
            with socket.create_connection((address.hostname, address.port or 5672), timeout=5) as wire:
                wire.sendall(b"AMQP\x00\x00\x09\x01")
                return wire.recv(11)[7:11] == b"\x00\x0a\x00\x0a"
        except OSError:
            return False

    @contextmanager
    def vhost(self) -> Iterator["Vhost"]:
        """A vhost for one user alone, deleted afterwards."""
        vhost = Vhost(server=self, name=f"test-{uuid.uuid4().hex[:12]}")
        self._create_vhost(vhost.name)
        try:
            yield vhost
        finally:
            self.api("DELETE", f"vhosts/{vhost.name}")

    def recreate_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it, and make it again, empty."""
        self.api("DELETE", f"vhosts/{name}")
        self._create_vhost(name)

    def _create_vhost(self, name: str) -> None:
        self.api("PUT", f"vhosts/{name}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"permissions/{name}/{urlsplit(self.amqp_url).username or 'guest'}", everything)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vhost:
    """The vhost of one test."""

    server: RabbitMQServer
    name: str

    @property
    def url(self) -> str:
        """The AMQP URL."""
        return self.server.url(self.name)

    def api(self, method: str, kind: str, path: str = "", body: Mapping[str, object] | None = None) -> Any:
        """Call the management API on this vhost's `kind` (`queues`, `exchanges`, `connections`, ...)."""
        return self.server.api(method, f"{kind}/{self.name}{'/' if path else ''}{path}", body)

    def policy(self, pattern: str, definition: Mapping[str, object], *, priority: int = 1) -> None:
        """Set the policy of all queues whose name matches `pattern`."""
        body = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": "queues"}
        self.api("PUT", "policies", f"test-{priority}", body)

    def close_connections(self) -> int:
        """Close every connection to this vhost from the server's side; return how many."""
        names = [row["name"] for row in self.server.api("GET", f"vhosts/{self.name}/connections")]
        for name in names:
            self.server.api("DELETE", f"connections/{quote(name, safe='')}")
        return len(names)
