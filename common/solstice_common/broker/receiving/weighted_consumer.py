"""Consumes several queues as one, in weighted order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from solstice_common.broker.delivery import Verdict
from solstice_common.broker.links.background import background
from solstice_common.broker.protocol import Broker, Consumer, Delivery
from solstice_common.broker.receiving.weighted_order import VirtualTimes, next_queues


@asynccontextmanager
async def consume_weighted(
    broker: Broker, weights: Mapping[str, int], *, prefetch: int
) -> AsyncIterator[Consumer]:
    """Consume the queues that `weights` names; one queue alone as the broker does.

    Each queue has a consumer with `prefetch`, so that messages of each are at hand when the next ones are chosen; of all
    together, at most `prefetch` are given out and not settled. Leaving returns the rest to their queues.
    """
    async with AsyncExitStack() as stack:
        consumers = {
            queue: await stack.enter_async_context(broker.consume(queue, prefetch=prefetch))
            for queue in weights
        }
        if len(consumers) == 1:
            yield next(iter(consumers.values()))
            return
        weighted = WeightedConsumer(consumers, weights, prefetch=prefetch)
        async with background({f"broker-read-{queue}": weighted.read(queue) for queue in weights}):
            yield weighted


class WeightedConsumer:
    """See `protocol.Consumer`, whose promises hold for each queue; `read` must be running for each.

    What is at hand when its connection is lost is still given out, and delivered again as well: as with any delivery
    that was under way then, the broker ignores the verdict on the first one.
    """

    def __init__(
        self, consumers: Mapping[str, Consumer], weights: Mapping[str, int], *, prefetch: int
    ) -> None:
        self._consumers = consumers
        self._weights = weights
        self._prefetch = prefetch
        self._times = VirtualTimes()
        self._at_hand: Mapping[str, deque[Delivery]] = {queue: deque() for queue in consumers}
        self._emptied = {queue: asyncio.Event() for queue in consumers}
        self._unsettled: dict[Delivery, str] = {}
        """The queue of each delivery that is not settled."""
        self._changed = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def subscribed(self) -> bool:
        """Whether all its queues are delivered."""
        return all(consumer.subscribed for consumer in self._consumers.values())

    async def batch(self) -> Sequence[Delivery]:
        """See `protocol.Consumer.batch`; those of each queue in its order."""
        while not (self._capacity and any(self._at_hand.values())):
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        waiting = {queue: len(deliveries) for queue, deliveries in self._at_hand.items()}
        chosen, self._times = next_queues(self._times, self._weights, waiting, self._capacity)
        batch = []
        for queue in chosen:
            delivery = self._at_hand[queue].popleft()
            self._unsettled[delivery] = queue
            self._emptied[queue].set()
            batch.append(delivery)
        return batch

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        """See `protocol.Consumer.settle`."""
        by_queue: dict[str, list[tuple[Delivery, Verdict]]] = {}
        for delivery, verdict in verdicts:
            if (queue := self._unsettled.pop(delivery, None)) is not None:
                by_queue.setdefault(queue, []).append((delivery, verdict))
        # These count as settled even if this is cancelled: the answer is under way, or they are delivered again.
        self._changed.set()
        async with asyncio.TaskGroup() as tasks:
            for queue, settled in by_queue.items():
                tasks.create_task(self._consumers[queue].settle(settled), name=f"broker-settle-{queue}")

    async def read(self, queue: str) -> None:
        """Keep deliveries of the queue at hand, until cancelled."""
        at_hand, emptied = self._at_hand[queue], self._emptied[queue]
        while True:
            if len(at_hand) >= self._prefetch:
                # Each connection that was lost meanwhile would otherwise leave another batch here.
                emptied.clear()
                await emptied.wait()
                continue
            try:
                at_hand.extend(await self._consumers[queue].batch())
            except Exception as error:  # noqa: BLE001  raised where the caller waits
                self._failure = error
                self._changed.set()
                return
            self._changed.set()

    @property
    def _capacity(self) -> int:
        return self._prefetch - len(self._unsettled)
