"""The brokers of the fault runs, each behind a proxy, and their faults."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import nats
from nats.js import JetStreamContext

from solstice_common.broker.jetstream.jetstream_names import stream_of
from solstice_common.settings import BrokerSettings
from solstice_common.topology import jobs_route
from tests.brokers import EMBEDDED
from tests.chaos.faults.schedule import OF_CLUSTERS, OF_SERVICES, Fault, Step
from tests.servers.nats_server import NatsServer, with_credentials
from tests.servers.proxy import FaultProxy, fault_proxy
from tests.servers.rabbitmq import own_rabbitmq, rabbitmq_here
from tests.servers.rabbitmq_cluster import RabbitMQCluster, rabbitmq_cluster
from tests.servers.rabbitmq_node import RabbitMQNode
from tests.servers.rabbitmq_server import RabbitMQServer
from tests.servers.redis_server import RedisServer
from tests.servers.server import Server
from tests.servers.versions import NATS, REDIS

USER: Final = "solstice"
PASSWORD: Final = "correct"
WRONG: Final = "changed"
ELECTION_SECONDS: Final = 60.0
LEADERLESS_SECONDS: Final = 3.0
"""Longer than the other two need to elect another leader."""


class BrokerUnderFaults:
    """A broker that the services reach by `url`."""

    faults: frozenset[Fault] = OF_SERVICES
    """The possible faults."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def inject(self, step: Step) -> None:
        """Let one fault of the broker happen; return when it is over."""
        raise AssertionError(f"{step.fault} cannot happen to this broker")

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue under its consumers."""
        raise AssertionError(f"nobody deletes {queue} here")

    async def restart_unsynced(self) -> None:
        """Restart it without its unsynced data, as after a power cut."""
        raise AssertionError("this broker writes to its disk before it confirms")


class EmbeddedUnderFaults(BrokerUnderFaults):
    """The file of the embedded broker: only its processes can fail."""


class ServerUnderFaults(BrokerUnderFaults, ABC):
    """A server behind a proxy."""

    faults = frozenset(Fault) - OF_CLUSTERS

    def __init__(self, url: str, server: Server, proxy: FaultProxy) -> None:
        super().__init__(url)
        self._server = server
        self._proxy = proxy

    async def inject(self, step: Step) -> None:
        happen: Mapping[Fault, Callable[[float], Awaitable[None]]] = {
            Fault.KILL_BROKER: self._kill,
            Fault.RESTART_BROKER: self._restart,
            Fault.FREEZE_BROKER: self._freeze,
            Fault.CUT_LINKS: self._cut,
            Fault.HALF_OPEN_LINKS: self._half_open,
            Fault.REFUSE_LINKS: self._refuse,
            Fault.MEMORY_ALARM: self._alarm,
            Fault.WRONG_PASSWORD: self._wrong_password,
        }
        await happen[step.fault](step.seconds)

    async def _kill(self, seconds: float) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._start)

    async def _restart(self, _: float) -> None:
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._start)

    async def _freeze(self, seconds: float) -> None:
        await asyncio.to_thread(self._server.freeze)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._server.thaw)

    async def _cut(self, _: float) -> None:
        self._proxy.drop()

    async def _half_open(self, seconds: float) -> None:
        self._proxy.freeze()
        await asyncio.sleep(seconds)
        self._proxy.drop()
        self._proxy.pass_through()

    async def _refuse(self, seconds: float) -> None:
        self._proxy.refuse()
        await asyncio.sleep(seconds)
        self._proxy.pass_through()

    async def _wrong_password(self, seconds: float) -> None:
        await asyncio.to_thread(self.set_password, WRONG)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.set_password, PASSWORD)

    @abstractmethod
    async def _alarm(self, seconds: float) -> None:
        """Let the server take no messages for so long."""

    def _start(self) -> None:
        self._server.start()

    @abstractmethod
    def set_password(self, password: str) -> None:
        """Change the password of the services' user, and end their connections."""


class RabbitMQUnderFaults(ServerUnderFaults):
    """RabbitMQ on one node."""

    def __init__(self, server: RabbitMQServer, proxy: FaultProxy) -> None:
        super().__init__(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/%2f", server, proxy)
        self._node = server
        self._put_user(PASSWORD)
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        server.api("PUT", f"permissions/%2f/{USER}", everything)

    def set_password(self, password: str) -> None:
        self._put_user(password)
        for row in self._node.api("GET", "connections"):
            with suppress(Exception):  # it may have ended by itself
                self._node.api("DELETE", f"connections/{row['name'].replace(' ', '%20').replace('>', '%3E')}")

    async def delete_queue(self, queue: str) -> None:
        await asyncio.to_thread(self._node.api, "DELETE", f"queues/%2f/{queue}")

    async def _alarm(self, seconds: float) -> None:
        await asyncio.to_thread(self._node.raise_alarm, "memory")
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._node.clear_alarm, "memory")

    def _put_user(self, password: str) -> None:
        self._node.api("PUT", f"users/{USER}", {"password": password, "tags": ""})


class RedisUnderFaults(ServerUnderFaults):
    """Redis, whose alarm is its memory limit."""

    def __init__(self, server: RedisServer, proxy: FaultProxy) -> None:
        super().__init__(f"redis://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/0", server, proxy)
        self._redis = server
        self._put_user(PASSWORD)

    def set_password(self, password: str) -> None:
        self._put_user(password)
        with self._redis.client() as client:
            client.execute_command("CLIENT", "KILL", "USER", USER)

    async def delete_queue(self, queue: str) -> None:
        await asyncio.to_thread(self._delete, queue)

    async def restart_unsynced(self) -> None:
        await self._kill(0)

    async def _alarm(self, seconds: float) -> None:
        await asyncio.to_thread(self._limit_memory, "1")
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._limit_memory, "0")

    def _limit_memory(self, limit: str) -> None:
        with self._redis.client() as client:
            client.config_set("maxmemory", limit)

    def _delete(self, queue: str) -> None:
        with self._redis.client() as client:
            names = [name for name in client.scan_iter(f"*{queue}") if client.type(name) == b"stream"]
            assert names, f"no stream of {queue}"
            client.delete(*names)

    def _start(self) -> None:
        super()._start()
        # A restart loses settings that were made at run time.
        self._put_user(PASSWORD)

    def _put_user(self, password: str) -> None:
        with self._redis.client() as client:
            client.execute_command(
                "ACL", "SETUSER", USER, "on", "resetpass", f">{password}", "~*", "&*", "+@all"
            )


class NatsUnderFaults(ServerUnderFaults):
    """NATS; its configuration has the password, so a changed one takes a restart.

    Its alarm is a limit of its streams: it has none of memory.
    """

    def __init__(self, server: NatsServer, proxy: FaultProxy) -> None:
        super().__init__(f"nats://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}", server, proxy)
        self._nats = server

    def set_password(self, password: str) -> None:
        self._nats.settings[:] = nats_users(password)
        self._server.stop()
        self._server.start()

    async def delete_queue(self, queue: str) -> None:
        async with self._jetstream() as jetstream:
            await jetstream.delete_stream(stream_of(queue))

    async def _alarm(self, seconds: float) -> None:
        await self._limit_streams(1)
        await asyncio.sleep(seconds)
        await self._limit_streams(-1)

    async def _limit_streams(self, most: int) -> None:
        async with self._jetstream() as jetstream:
            for stream in await jetstream.streams_info():
                if not str(stream.config.name).startswith("KV_"):  # not the bucket of the topology
                    await jetstream.update_stream(stream.config.evolve(max_msgs=most))

    @asynccontextmanager
    async def _jetstream(self) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(with_credentials(self._nats.url, f"{USER}:{PASSWORD}"))
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def restart_unsynced(self) -> None:
        await asyncio.to_thread(self._server.kill)
        # By default it syncs every two minutes. A power cut before that leaves not even the streams.
        self._nats.forget()
        await asyncio.to_thread(self._server.start)


def nats_users(password: str) -> list[str]:
    """The lines of the configuration for the services' user."""
    return [f"authorization {{ users: [ {{ user: {USER}, password: {password} }} ] }}"]


class ClusterUnderFaults(BrokerUnderFaults):
    """Three nodes of RabbitMQ; the services know the addresses of all."""

    faults = OF_CLUSTERS | {Fault.CUT_LINKS} | OF_SERVICES

    def __init__(self, cluster: RabbitMQCluster, proxies: Sequence[FaultProxy], queue: str) -> None:
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        super().__init__(f"amqp://guest:guest@{hosts}/%2f")
        self._cluster = cluster
        self._proxies = proxies
        self._queue = queue

    async def inject(self, step: Step) -> None:
        if step.fault is Fault.CUT_LINKS:
            for proxy in self._proxies:
                proxy.drop()
            return
        leader = await asyncio.to_thread(self._leader)
        happen: Mapping[Fault, tuple[Callable[[], None], Callable[[], None]]] = {
            Fault.KILL_LEADER: (leader.kill, leader.start),
            Fault.FREEZE_LEADER: (leader.freeze, leader.thaw),
            Fault.ISOLATE_LEADER: (
                partial(self._cluster.isolate, leader),
                partial(self._cluster.rejoin, leader),
            ),
        }
        begin, end = happen[step.fault]
        await asyncio.to_thread(begin)
        await asyncio.sleep(LEADERLESS_SECONDS + step.seconds)
        await asyncio.to_thread(end)

    def _leader(self) -> RabbitMQNode:
        deadline = time.monotonic() + ELECTION_SECONDS
        while (leader := self._cluster.leader(self._queue)) is None:
            assert time.monotonic() < deadline, f"nobody leads {self._queue}"
            time.sleep(0.1)
        return leader


@asynccontextmanager
async def cluster_under_faults() -> AsyncIterator[BrokerUnderFaults]:
    """A RabbitMQ cluster of three nodes, which ends with the block."""
    async with AsyncExitStack() as stack:
        starting = rabbitmq_cluster(rabbitmq_here())
        cluster = await asyncio.to_thread(starting.__enter__)
        stack.push(starting.__exit__)
        proxies = [
            await stack.enter_async_context(fault_proxy(f"tcp://127.0.0.1:{node.port}"))
            for node in cluster.nodes
        ]
        yield ClusterUnderFaults(cluster, proxies, jobs_route(BrokerSettings.model_construct()).queue)


@asynccontextmanager
async def broker_under_faults(
    kind: str, directory: Path, *, durable: bool = True
) -> AsyncIterator[BrokerUnderFaults]:
    """A broker of that kind, which ends with the block.

    Unless `durable`, it confirms before it syncs.
    """
    if kind == EMBEDDED:
        yield EmbeddedUnderFaults(f"sqlite:///{directory / 'broker.db'}")
        return
    async with AsyncExitStack() as stack:

        async def started(server: Server) -> None:
            await asyncio.to_thread(server.__enter__)
            stack.push(server.__exit__)

        async def proxy(port: int) -> FaultProxy:
            return await stack.enter_async_context(fault_proxy(f"tcp://127.0.0.1:{port}"))

        if kind == REDIS:
            redis_server = RedisServer({} if durable else {"appendonly": "no"})
            await started(redis_server)
            yield RedisUnderFaults(redis_server, await proxy(redis_server.port))
        elif kind == NATS:
            nats_server = NatsServer(
                settings=nats_users(PASSWORD), sync_interval="always" if durable else None
            )
            await started(nats_server)
            yield NatsUnderFaults(nats_server, await proxy(nats_server.port))
        else:
            rabbitmq = own_rabbitmq(kind)
            await started(rabbitmq)
            port = int(rabbitmq.amqp_url.rpartition("/")[0].rpartition(":")[2])
            yield RabbitMQUnderFaults(rabbitmq, await proxy(port))
