"""Brokers of each kind with users whose rights a test chooses."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlsplit

import nats
import pytest

from solstice_common.broker.jetstream.jetstream_names import TOPOLOGY_BUCKET, stream_of
from solstice_common.rights.nats_rights import nats_rights, user_entry
from solstice_common.rights.rabbitmq_rights import expression, rabbitmq_rights
from solstice_common.rights.redis_rights import TOPOLOGY as TOPOLOGY_KEY
from solstice_common.rights.redis_rights import Grant, RedisRights, redis_rights
from solstice_common.rights.roles import Role
from solstice_common.topology import CANCELS, STATUSES, Route
from tests.broker_roles import JOBS, SETTINGS, Refusal, RoleBroker
from tests.garbage import LOST_CONNECTIONS
from tests.polling import WAIT_SECONDS
from tests.servers.nats_server import NatsServer, with_credentials
from tests.servers.rabbitmq import RabbitMQServer, Vhost
from tests.servers.redis_server import RedisServer
from tests.servers.versions import nats_flavours, redis_flavours

PASSWORD: Final = "p"
MESSAGES: Final = ("request", "cancel", "status")
MEASURE: Final = frozenset({"know the durability", "measure requests", "measure every queue"})
"""No right is needed for that, before 4.3.1."""
MARKS: Final = (
    pytest.mark.timeout(240),  # it may have to start a RabbitMQ first
    LOST_CONNECTIONS,
)
"""What a module with tests of these users needs as its `pytestmark`, beside `garbage_of_this_test`."""
Right = tuple[str, str]
"""`configure`, `write` or `read` with the name of an object; or `tag` with that tag."""


class RabbitMQRoles(RoleBroker):
    # Who declares a queue with a dead-letter exchange must be able to read the queue and to write to the exchange.
    beyond = MappingProxyType(
        {
            **dict.fromkeys(Role, MEASURE),
            Role.ADMIN: MEASURE
            | {f"{verb} {what}" for verb in ("take a", "refuse a", "refuse a large") for what in MESSAGES}
            | {"publish a dead letter"},
        }
    )

    publishing = ("write", JOBS.exchange)
    reading = ("read", JOBS.queue)

    def __init__(self, vhost: Vhost) -> None:
        self.url = vhost.url
        self.management_url = None
        self.name = f"otter-{uuid.uuid4().hex[:8]}"
        self._vhost = vhost

    def rights(self, role: Role) -> Sequence[Right]:
        rights = rabbitmq_rights(role, SETTINGS)
        named = [(right, name) for right, names in rights.names().items() for name in names]
        return [*named, *(("tag", tag) for tag in sorted(rights.tags))]

    def single(self, rights: Sequence[Right]) -> frozenset[tuple[str, str]]:
        return frozenset(("tags" if right == "tag" else right, name) for right, name in rights)

    def options_of_check(self, url: str) -> Sequence[str]:
        return ["--amqp-url", url, "--management-url", self._vhost.server.management_url]

    def user(self, rights: Sequence[Right]) -> str:
        server = self._vhost.server
        tags = [name for right, name in rights if right == "tag"]
        server.api("PUT", f"users/{self.name}", {"password": PASSWORD, "tags": ",".join(tags)})
        self.grant(rights)
        parts, management = urlsplit(self.url), urlsplit(server.management_url)
        host = f"{self.name}:{PASSWORD}@"
        self.management_url = management._replace(
            netloc=f"{host}{management.hostname}:{management.port}"
        ).geturl()
        return parts._replace(netloc=f"{host}{parts.hostname}:{parts.port or 5672}").geturl()

    def grant(self, rights: Sequence[Right]) -> None:
        """Give the user exactly these rights."""
        granted = {
            each: expression([name for right, name in rights if right == each])
            for each in ("configure", "write", "read")
        }
        self._vhost.api("PUT", "permissions", self.name, granted)

    def losing_for(self, right: Right) -> Route:
        return route_of(right[1])

    async def lose_topology(self) -> None:
        route = self.losing
        for kind, names in (("queues", (route.queue, route.dlq)), ("exchanges", (route.exchange, route.dlx))):
            for name in names:
                self._vhost.api("DELETE", kind, name)

    def end_connections(self) -> None:
        server, until = self._vhost.server, time.monotonic() + WAIT_SECONDS
        # The management API learns of a connection a moment after it was made.
        while not (names := self._connections()):
            assert time.monotonic() < until
            time.sleep(0.1)
        for name in names:
            server.api("DELETE", f"connections/{quote(name, safe='')}")

    def _connections(self) -> Sequence[str]:
        rows = self._vhost.server.api("GET", f"vhosts/{self._vhost.name}/connections")
        return [row["name"] for row in rows if row.get("user") == self.name]

    def is_named(self, right: Right, refusal: Refusal) -> bool:
        kind, name = right
        # Before 3.12 the server names no right, and a declaration needs two.
        return refusal.target.split()[-1] == name and kind in refusal.right


class RedisRoles(RoleBroker):
    publishing = "~" + JOBS.queue, 2
    reading = "xreadgroup", 2

    def __init__(self, server: RedisServer) -> None:
        self.url = server.fresh_url()
        self.name = f"otter-{uuid.uuid4().hex[:8]}"
        self._server = server

    def rights(self, role: Role) -> Sequence[Any]:
        return [
            (name, number)
            for number, grant in enumerate(redis_rights(role, SETTINGS).grants)
            for name in (*grant.commands, *(f"~{key}" for key in grant.keys))
        ]

    def single(self, rights: Sequence[Any]) -> frozenset[tuple[str, str]]:
        return self._granted(rights).single()

    def options_of_check(self, url: str) -> Sequence[str]:
        return ["--amqp-url", self.url, "--user", self.name]

    def _granted(self, rights: Sequence[Any]) -> RedisRights:
        grants = [
            Grant(
                tuple(name for name, grant in rights if grant == number and name[0] != "~"),
                tuple(name[1:] for name, grant in rights if grant == number and name[0] == "~"),
            )
            for number in sorted({number for _, number in rights})
        ]
        return RedisRights(tuple(each for each in grants if each.commands))

    def user(self, rights: Sequence[Any]) -> str:
        with self._server.client() as client:
            client.execute_command(
                *("ACL", "SETUSER", self.name, "reset", "on", f">{PASSWORD}"),
                *(
                    word
                    for rule in self._granted(rights).rules()
                    for word in ([rule] if "(" in rule else rule.split())
                ),
            )
        return self.url.replace("://", f"://{self.name}:{PASSWORD}@")

    def losing_for(self, right: Any) -> Route:
        return route_of(right[0][1:])

    async def lose_topology(self) -> None:
        route = self.losing
        with self._server.client() as client:
            fields = client.hkeys(TOPOLOGY_KEY)
            names = {route.exchange, route.queue, route.dlx, route.dlq}
            client.hdel(
                TOPOLOGY_KEY, *(each for each in fields if each.decode()[2:].partition("\0")[0] in names)
            )
            client.delete(route.queue, route.dlq)

    def waits(self) -> bool:
        with self._server.client() as client:
            return any(each["user"] == self.name and "b" in each["flags"] for each in client.client_list())

    def forget(self) -> None:
        with self._server.client() as client:
            client.script_flush()

    def end_connections(self) -> None:
        with self._server.client() as client:
            assert client.execute_command("CLIENT", "KILL", "USER", self.name)

    def is_named(self, right: Any, refusal: Refusal) -> bool:
        name = str(right[0])
        if name[0] != "~":
            return refusal.right == name
        return fnmatch(refusal.target, f"key {name[1:]}") or "dead letters" in refusal.target

    def close(self) -> None:
        with self._server.client() as client:
            client.execute_command("ACL", "DELUSER", self.name)


class NatsRoles(RoleBroker):
    publishing = "publish", JOBS.queue
    reading = "publish", "$JS.API.CONSUMER.MSG.NEXT.solstice_jobs_v1.solstice"
    # The durability is asked of the monitoring port. Who may put dead letters back may also publish new ones.
    beyond = MappingProxyType(
        {
            **dict.fromkeys(Role, frozenset({"know the durability"})),
            Role.OPERATOR: frozenset({"know the durability", "publish a dead letter"}),
        }
    )

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.name = "otter"
        self.url = with_credentials(server.url, f"root:{PASSWORD}")

    def rights(self, role: Role) -> Sequence[Any]:
        names = nats_rights(role, SETTINGS).names(self.name)
        return [(right, subject) for right, subjects in names.items() for subject in subjects]

    def single(self, rights: Sequence[Any]) -> frozenset[tuple[str, str]]:
        return frozenset(rights)

    def options_of_check(self, url: str) -> Sequence[str]:
        return ["--amqp-url", url]

    def user(self, rights: Sequence[Any]) -> str:
        names = {each: [name for right, name in rights if right == each] for each in ("publish", "subscribe")}
        return self.configured("\n".join(user_entry(self.name, PASSWORD, names)), PASSWORD)

    def configured(self, own: str, password: str) -> str:
        """Have the server read this entry; return the user's address."""
        root = f'{{ user: "root", password: "{PASSWORD}" }}'
        self._server.settings = [f"authorization {{ users: [\n{root},\n{own}\n] }}"]
        self._server.reload()
        return with_credentials(self._server.url, f"{self.name}:{password}")

    def is_shown(self, right: Any) -> bool:
        # The first answer to a delivery within a minute is a response, and allowed; later ones need this right.
        # Without the right to read many dead letters at once, each is read alone.
        return not str(right[1]).startswith(("$JS.ACK.", "$JS.API.DIRECT.GET."))

    def substitutes(self, right: Any) -> Sequence[Any]:
        # A dead letter is read with others by one request, and by itself where a server does not answer that.
        kind, subject = right
        together = str(subject).replace("$JS.API.STREAM.MSG.GET.", "$JS.API.DIRECT.GET.")
        return () if together == subject else [(kind, together)]

    def losing_for(self, right: Any) -> Route:
        stream = str(right[1]).split(".")[-1 if "CREATE" in right[1] and "CONSUMER" not in right[1] else -2]
        return route_of(stream.replace("_", "."))

    async def lose_topology(self) -> None:
        client = await nats.connect(self.url)
        jetstream = client.jetstream()
        for name in (self.losing.queue, self.losing.dlq):
            await jetstream.delete_stream(stream_of(name))
        await jetstream.delete_key_value(TOPOLOGY_BUCKET)
        await client.close()

    def end_connections(self) -> None:
        """They ended with the change."""

    def is_named(self, right: Any, refusal: Refusal) -> bool:
        kind, subject = right
        return refusal.right == kind and fnmatch(refusal.target, f"subject {subject.replace('>', '*')}")


def route_of(name: str) -> Route:
    """The route of an object's name; that of the statuses for others."""
    routes = (JOBS, CANCELS, STATUSES)
    names = {each: route for route in routes for each in (route.exchange, route.queue, route.dlx, route.dlq)}
    return names.get(name, STATUSES)


@pytest.fixture
def roles(
    broker_kind: str,
    rabbitmq_servers: Callable[[str], RabbitMQServer],
    redis_servers: Callable[[str], RedisServer],
) -> Iterator[RoleBroker]:
    """A broker that only this test uses."""
    if broker_kind in nats_flavours()[0]:
        with NatsServer(flavour=broker_kind) as server:
            nats_roles = NatsRoles(server)
            nats_roles.user([])
            yield nats_roles
        return
    if broker_kind in redis_flavours()[0]:
        redis = RedisRoles(redis_servers(broker_kind))
        yield redis
        redis.close()
        return
    with rabbitmq_servers(broker_kind).vhost() as vhost:
        broker = RabbitMQRoles(vhost)
        broker.user([])
        yield broker
        vhost.server.api("DELETE", f"users/{broker.name}")
