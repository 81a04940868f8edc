"""A private RabbitMQ cluster of three nodes, which can be parted."""

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import httpx2

from tests.servers.ports import free_ports
from tests.servers.rabbitmq_node import Installation, RabbitMQNode

NODES: Final = 3
REJOIN_SECONDS: Final = 100.0


@dataclass(frozen=True, slots=True)
class RabbitMQCluster:
    """Three nodes of one cluster, all started."""

    nodes: Sequence[RabbitMQNode]
    cookie: str

    def leader(self, queue: str) -> RabbitMQNode | None:
        """The node that leads a quorum queue of the vhost `/`, if there is one now."""
        for node in self.nodes:
            try:
                found = node.api("GET", f"queues/%2f/{queue}")
            except httpx2.HTTPError:
                continue
            return next((each for each in self.nodes if each.name == found.get("leader")), None)
        return None

    def isolate(self, node: RabbitMQNode) -> None:
        """Part the node from both others; its clients stay connected to it.

        With a wrong cookie neither side can connect to the other any more.
        """
        self._set_cookies(node, f"wrong_{secrets.token_hex(4)}")

    def rejoin(self, node: RabbitMQNode) -> None:
        """End the partition, and wait until all see each other again."""
        self._set_cookies(node, self.cookie)
        deadline = time.monotonic() + REJOIN_SECONDS
        while not all(self._sees_all(each) for each in self.nodes):
            assert time.monotonic() < deadline, "the nodes do not see each other"
            time.sleep(0.2)

    def _sees_all(self, node: RabbitMQNode) -> bool:
        # A node that paused in its minority has stopped its management too, until it is back.
        try:
            rows = node.api("GET", "nodes")
        except httpx2.HTTPError:
            return False
        return len([row for row in rows if row["running"]]) == NODES

    def _set_cookies(self, node: RabbitMQNode, cookie: str) -> None:
        for other in self.nodes:
            if other is not node:
                node.ctl(
                    "eval",
                    f"erlang:set_cookie('{other.name}', '{cookie}'), erlang:disconnect_node('{other.name}').",
                )


@contextmanager
def rabbitmq_cluster(installation: Installation) -> Iterator[RabbitMQCluster]:
    """A cluster, which ends with the block."""
    cookie = secrets.token_hex(16)
    (epmd_port,) = free_ports(1)
    # A node that sees neither of the others stops serving: `pause_minority`, as operators set it.
    settings = {"cluster_partition_handling": "pause_minority"}
    with ExitStack() as stack:
        nodes = [
            RabbitMQNode(installation, settings=settings, epmd_port=epmd_port, cookie=cookie)
            for _ in range(NODES)
        ]
        for node in nodes:
            stack.callback(node.close)
        with ThreadPoolExecutor(NODES) as starting:
            list(starting.map(RabbitMQNode.start, nodes))
        for node in nodes[1:]:
            node.ctl("stop_app")
            node.ctl("join_cluster", nodes[0].name)
            node.ctl("start_app")
        yield RabbitMQCluster(nodes, cookie)
