"""Reads objects, policies and permissions of a RabbitMQ from its management API.

AMQP itself shows none of that. Source: rabbitmq.com/docs/management#http-api; the same on 3.10 to 4.3.
"""

import ssl
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import httpx2
from yarl import URL

from solstice_common.addresses.broker_urls import ESCAPES
from solstice_common.addresses.tls import TlsFiles, with_remedy
from solstice_common.broker.rabbitmq.rabbitmq_address import rabbitmq_address
from solstice_common.broker.topology_check import (
    FoundExchange,
    FoundQueue,
    FoundTopology,
    Permissions,
    effective_policy,
    matches,
    merged_policy,
)
from solstice_common.errors import BrokerUnavailable, ConfigurationError
from solstice_common.topology import Binding, Topology

ANSWER_SECONDS: Final = 10.0
PORTS: Final[Mapping[str, tuple[str, int]]] = {"amqp": ("http", 15672), "amqps": ("https", 15671)}
"""Scheme and port of the management API by the broker URL's scheme."""


async def found_topology(
    amqp_url: str, topology: Topology, *, management_url: str | None = None, user: str | None = None
) -> FoundTopology:
    """The objects of a topology in a virtual host, as the URL's user sees them.

    `management_url` is `http://HOST:15672` of the broker unless given. `user` is the user whose permissions
    are read, the URL's own unless given.

    Raises BrokerUnavailable without an answer, and ConfigurationError when the API refuses the user.
    """
    async with _opened(amqp_url, management_url) as (api, vhost, name):
        overview = await api.get("overview")
        policies, operator_policies = (
            await api.get(f"policies/{vhost}"),
            await api.list_or_nothing(f"operator-policies/{vhost}"),
        )
        exchanges = {
            exchange.name: _exchange(exchange.name, row, policies)
            for exchange in topology.exchanges
            if (row := await api.one(f"exchanges/{vhost}/{quote(exchange.name, safe='')}"))
        }
        queues = {
            queue.name: _queue(queue.name, row, policies, operator_policies)
            for queue in topology.queues
            if (row := await api.one(f"queues/{vhost}/{quote(queue.name, safe='')}"))
        }
        bindings = await api.get(f"bindings/{vhost}")
        permissions = await api.one(f"permissions/{vhost}/{quote(user or name, safe='')}")
    return FoundTopology(
        exchanges=exchanges,
        queues=queues,
        bindings=frozenset(
            Binding(exchange=row["source"], queue=row["destination"], routing_key=row["routing_key"])
            for row in bindings
            if row["destination_type"] == "queue" and row["source"]
        ),
        policies={
            queue.name: _any_policy(queue.name, policies, operator_policies) for queue in topology.queues
        },
        permissions=permissions and _permissions(permissions),
        major_version=int(str(overview["rabbitmq_version"]).partition(".")[0]),
        unknown=tuple(api.unknown)
        if permissions
        else (*api.unknown, f"the permissions of the user {user or name!r}: it has none here"),
    )


async def granted_rights(
    amqp_url: str, rights: Collection[tuple[str, str]], *, user: str, management_url: str | None = None
) -> frozenset[tuple[str, str]]:
    """Return those of the rights that a user has in the virtual host.

    Only an administrator may ask. Raises as `found_topology` does, and ConfigurationError when there is no such user.
    """
    async with _opened(amqp_url, management_url) as (api, vhost, _):
        name = quote(user, safe="")
        found, permissions = await api.one(f"users/{name}"), await api.one(f"permissions/{vhost}/{name}")
    if api.unknown:
        raise ConfigurationError(f"{api.unknown[0]}: name one in --management-url")
    if found is None:
        raise ConfigurationError(f"RabbitMQ has no user {user!r}")
    tags = found["tags"] if isinstance(found["tags"], list) else found["tags"].split(",")
    # Each of its tags lets a user ask the API, which is what `management` does.
    known = {target for right, target in rights if right == "tags"} & {*tags}
    tagged = {("tags", tag) for tag in (*known, *(("management",) if known else ()))}
    expressions = permissions or {}
    return frozenset(
        each for each in rights if each in tagged or _permits(str(expressions.get(each[0], "")), each[1])
    )


def _permits(expression: str, name: str) -> bool:
    """Return whether it matches; RabbitMQ takes an empty one for none."""
    return bool(expression) and matches(expression, name)


async def messages_in(amqp_url: str, queue: str, *, management_url: str | None = None) -> int | None:
    """Return how many messages a queue has, including unacked ones and dead letters in transit.

    The number is some seconds old; None when there is none yet. Raises as `found_topology` does.
    """
    async with _opened(amqp_url, management_url) as (api, vhost, _):
        row = await api.one(f"queues/{vhost}/{quote(queue, safe='')}")
    if row is None or row.get("messages") is None:
        return None
    return int(row["messages"]) + int(row.get("messages_dlx") or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """The messages of a queue at one moment some seconds ago."""

    ready: int
    unacked: int
    """Those that consumers hold, and those that a client got one by one (`basic.get`)."""


async def counts_in(
    amqp_url: str, queue: str, *, management_url: str | None = None, connect_seconds: float
) -> QueueCounts | None:
    """Return the numbers of a queue's messages.

    None when the API gives none to this user. Raises as `found_topology` does.
    """
    async with _opened(amqp_url, management_url, connect_seconds) as (api, vhost, _):
        row = await api.one(f"queues/{vhost}/{quote(queue, safe='')}") or {}
    ready, unacked = row.get("messages_ready"), row.get("messages_unacknowledged")
    return None if ready is None or unacked is None else QueueCounts(ready=int(ready), unacked=int(unacked))


@asynccontextmanager
async def _opened(
    amqp_url: str, management_url: str | None, connect_seconds: float = ANSWER_SECONDS
) -> "AsyncIterator[tuple[_ManagementApi, str, str]]":
    """The API, and the virtual host and the user as it names them."""
    address = rabbitmq_address(amqp_url)
    broker = address.at(address.hosts[0])
    base = _given(management_url) if management_url else _management(broker)
    name, password = base.user or broker.user or "guest", base.password or broker.password or "guest"
    vhost = quote(unquote(broker.raw_path.removeprefix("/")) or "/", safe="")
    async with httpx2.AsyncClient(
        base_url=str(base.with_user(None)).rstrip("/") + "/api/",
        auth=(name, password),
        verify=address.tls is None or _verification(address.tls, is_named=management_url is not None),
        timeout=httpx2.Timeout(ANSWER_SECONDS, connect=connect_seconds),
        trust_env=False,
    ) as http:
        yield _ManagementApi(http, str(base.with_user(None))), vhost, name


class _ManagementApi:
    def __init__(self, http: httpx2.AsyncClient, where: str) -> None:
        self._http = http
        self._where = where
        self.unknown: list[str] = []
        """The requests that this user was refused, as sentences."""

    async def get(self, path: str) -> Any:
        """Return the API's answer; ConfigurationError when it refuses the user."""
        answer = await self._answer(path)
        if answer.status_code in {401, 403}:
            raise ConfigurationError(
                f"the management API at {self._where} refuses this user: give it the tag 'management' "
                "(rabbitmqctl set_user_tags USER management), or name one that has it in --management-url"
            )
        if answer.is_error:
            raise BrokerUnavailable(self._where, f"/api/{path}: status {answer.status_code}")
        return answer.json()

    async def one(self, path: str) -> Any:
        """Return an object; None where it is missing, or the user refused, which is noted."""
        answer = await self._answer(path)
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return None
        if answer.status_code in {401, 403}:
            self.unknown.append(f"/api/{path}: only an administrator may ask")
            return None
        if answer.is_error:
            raise BrokerUnavailable(self._where, f"/api/{path}: status {answer.status_code}")
        return answer.json()

    async def list_or_nothing(self, path: str) -> Sequence[Mapping[str, object]]:
        """Return a list; empty where the user is refused, which is noted."""
        return await self.one(path) or ()

    async def _answer(self, path: str) -> httpx2.Response:
        try:
            return await self._http.get(path)
        except httpx2.HTTPError as error:
            raise BrokerUnavailable(
                self._where,
                f"its management API does not answer ({with_remedy(str(error))}): enable it (rabbitmq-plugins enable "
                "rabbitmq_management), or name it with --management-url",
            ) from None


def _verification(tls: TlsFiles, *, is_named: bool) -> ssl.SSLContext:
    """Verify as the broker is, and by the system's authorities, too.

    An API that has an address of its own has that name. ConfigurationError names a file that cannot be used.
    """
    name = None if is_named else tls.server_name
    context = TlsFiles(
        cafile=tls.cafile, certfile=tls.certfile, keyfile=tls.keyfile, server_name=name
    ).context()
    context.load_default_certs()
    return context


def _given(management_url: str) -> URL:
    """The URL of the API; ConfigurationError, which never repeats it: it may hold a password."""
    try:
        url = URL(management_url)
        is_address = url.scheme in {"http", "https"} and bool(url.host) and url.port != 0
    except ValueError:
        is_address = False
    if not is_address or url.query_string or url.fragment:
        raise ConfigurationError(
            f"--management-url: must look like http://user:password@host:15672; {ESCAPES}"
        )
    return url


def _management(broker: URL) -> URL:
    scheme, port = PORTS[broker.scheme]
    return URL.build(scheme=scheme, host=broker.host or "127.0.0.1", port=port)


def _exchange(name: str, row: Mapping[str, Any], policies: Sequence[Mapping[str, object]]) -> FoundExchange:
    return FoundExchange(
        kind=row["type"],
        durable=row["durable"],
        auto_delete=row["auto_delete"],
        internal=row["internal"],
        arguments=row["arguments"],
        policy=effective_policy("exchanges", name, policies),
    )


def _queue(
    name: str,
    row: Mapping[str, Any],
    policies: Sequence[Mapping[str, object]],
    operator_policies: Sequence[Mapping[str, object]],
) -> FoundQueue:
    kind = str(row["arguments"].get("x-queue-type", row.get("type", "classic")))
    return FoundQueue(
        durable=row["durable"],
        auto_delete=row["auto_delete"],
        exclusive=row["exclusive"],
        arguments={**row["arguments"], "x-queue-type": kind},
        policy=merged_policy(
            effective_policy("queues", name, policies, kind),
            effective_policy("queues", name, operator_policies, kind),
        ),
    )


def _any_policy(
    name: str, policies: Sequence[Mapping[str, object]], operator_policies: Sequence[Mapping[str, object]]
) -> Mapping[str, object]:
    """Return the policies of a queue of this name, of either type."""
    return {
        key: value
        for kind in ("classic", "quorum")
        for key, value in merged_policy(
            effective_policy("queues", name, policies, kind),
            effective_policy("queues", name, operator_policies, kind),
        ).items()
    }


def _permissions(row: Mapping[str, Any]) -> Permissions:
    return Permissions(user=row["user"], configure=row["configure"], write=row["write"], read=row["read"])
