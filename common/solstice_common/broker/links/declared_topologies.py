"""Remembers the declared topologies of a broker, and declares them on each new connection."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Generic, TypeVar

import structlog

from solstice_common.broker.links.missing_rights import DECLARING, RightRefused
from solstice_common.errors import TopologyMismatch
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Queue, Topology

C = TypeVar("C")
DECLARE_WAIT_SECONDS: Final = 10.0
"""How long a declaration waits for a connection."""


class DeclaredTopologies(Generic[C]):
    """The topologies of one broker; `declare_on` declares one on a connection."""

    def __init__(
        self, declare_on: Callable[[C, Topology], Awaitable[None]], *, log: structlog.stdlib.BoundLogger
    ) -> None:
        self._declare_on = declare_on
        self._log = log
        self._topologies: list[Topology] = []
        self._mismatches: dict[str, TopologyMismatch] = {}

    async def declare(self, connection: C, topology: Topology) -> None:
        """Declare a topology, now and after every reconnect. Raises what `declare_on` raises."""
        try:
            await self._declare_on(connection, topology)
        except RightRefused as refused:
            refused.log(DECLARING)
            raise
        if topology not in self._topologies:
            self._topologies.append(topology)
        for queue in topology.queues:
            self._mismatches.pop(queue.name, None)

    async def again(self, connection: C) -> None:
        """Declare everything again: a restarted server may be empty.

        A changed object stops only its own consumer, and an object that the user may not declare only those who need
        it; any other error of `declare_on` is raised.
        """
        mismatches: dict[str, TopologyMismatch] = {}
        for topology in self._topologies:
            try:
                await self._declare_on(connection, topology)
            except RightRefused as refused:
                refused.log(DECLARING)
            except TopologyMismatch as mismatch:
                mismatches[mismatch.name] = mismatch
                self._log.error(
                    LogEvent.BROKER_MISMATCHED,
                    kind=mismatch.kind,
                    name=mismatch.name,
                    detail=mismatch.on_broker,
                )
        self._mismatches = mismatches

    def queues(self) -> Iterator[Queue]:
        """Yield all queues that were declared."""
        for topology in self._topologies:
            yield from topology.queues

    def dead_letter_exchange(self, queue: str) -> str | None:
        """Return the declared exchange for refused messages of `queue`."""
        return next((each.dead_letter_exchange for each in self.queues() if each.name == queue), None)

    def mismatch(self, queue: str) -> TopologyMismatch | None:
        """Return why `queue` differs from its declaration since the last reconnect."""
        return self._mismatches.get(queue)

    @property
    def first_mismatch(self) -> str | None:
        """The first of all differences, as a sentence."""
        return next(map(str, self._mismatches.values()), None)
