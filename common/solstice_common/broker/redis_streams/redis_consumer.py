"""Consumes one queue of Redis, under a new consumer name after each lost connection."""

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog
from redis.exceptions import ResponseError

from solstice_common.broker.delivery import MAX_DELIVERIES, Refuse, Verdict
from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.missing_rights import CONSUMING
from solstice_common.broker.links.resubscribing import QueueMissing, Resubscriber, SubscriptionEnded
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivery
from solstice_common.broker.redis_streams.redis_consumer_scripts import LEAVE, TAKE
from solstice_common.broker.redis_streams.redis_settling import RedisSettling, RedisSettlingBroker
from solstice_common.broker.redis_streams.redis_url import RedisAddress
from solstice_common.broker.redis_streams.redis_wire import RedisDenied, RedisLost, RedisRefusal, RedisWire
from solstice_common.broker.redis_streams.stream_entries import DELIVERED_BYTES, StreamDelivery
from solstice_common.telemetry.log_events import LogEvent

WAIT_SECONDS: Final = 0.5
"""How long a consumer waits to be woken: returned entries and other publishers may not wake it."""
WAIT_GRACE_SECONDS: Final = 5.0
RENEWALS: Final = 6
"""Renewals within one lease."""
SWEEP_SECONDS: Final = 5.0
"""Seconds between looks for consumers whose lease has ended."""
LEAVE_SECONDS: Final = 3.0

log = structlog.get_logger(__name__)


class RedisConsumerBroker(RedisSettlingBroker, Protocol):
    """What a consumer needs from its broker."""

    @property
    def declared(self) -> DeclaredTopologies[RedisWire]: ...


class RedisConsumer:
    """See `protocol.Consumer`; `run` must be running, over a link of its own."""

    def __init__(
        self,
        link: SupervisedLink[RedisWire],
        broker: RedisConsumerBroker,
        address: RedisAddress,
        queue: str,
        *,
        prefetch: int,
        rng: random.Random,
    ) -> None:
        self._link = link
        self._broker = broker
        self._url = address.shown
        self._prefix = address.prefix
        self._lease_seconds = address.lease_seconds
        self._queue = queue
        self._prefetch = prefetch
        self._former: list[str] = []
        self._client_id: int | None = None
        self._ready: deque[StreamDelivery] = deque()
        self._unsettled: dict[object, StreamDelivery] = {}
        self._resubscriber = Resubscriber(link, broker.declared, queue, rng=rng)
        self._wake = asyncio.Event()
        """Set when the reader may have something to do: room, acks, the end."""
        self._sweep_at = 0.0
        self._leaving = False
        self.subscribed = False
        """See `protocol.Consumer.subscribed`."""
        self._settling = RedisSettling(
            broker, prefix=address.prefix, queue=queue, rng=rng, wake_reader=self._wake.set
        )

    async def batch(self) -> Sequence[Delivery]:
        """See `protocol.Consumer.batch`."""
        return await self._resubscriber.batch(lambda: self._ready, self._prefetch)

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        """See `protocol.Consumer.settle`.

        A retried delivery is held for a moment, longer each time, and then returned.
        """
        decided: list[tuple[StreamDelivery, Verdict]] = []
        for delivery, verdict in verdicts:
            # An entry has the same id when it is delivered again: compare the delivery itself.
            known = self._unsettled.get(delivery.tag)
            if known is delivery:
                del self._unsettled[delivery.tag]
                decided.append((known, verdict))
        await self._settling.settle(decided)

    async def run(self) -> None:
        """Read until `leave`, through every loss of link or queue; then return the held entries."""
        await self._resubscriber.run(self._subscribe, ended=lambda: self._leaving)
        await self._give_back()

    async def leave(self) -> None:
        """End reading, and wake a blocked read for that; `run` returns soon after."""
        self._leaving = True
        self._wake.set()
        with suppress(RedisLost, RedisDenied, ResponseError):
            if self._client_id is not None and (wire := self._broker.control.connection) is not None:
                await wire.command("CLIENT", "UNBLOCK", self._client_id, "TIMEOUT", seconds=LEAVE_SECONDS)

    async def _subscribe(self, wire: RedisWire) -> None:
        try:
            await self._read(wire)
        except RedisDenied:
            raise
        except (RedisRefusal, ResponseError) as refused:
            if str(refused).startswith(("NOGROUP", "UNBLOCKED")):
                raise QueueMissing(self._queue) from None
            raise SubscriptionEnded(str(refused)) from None
        finally:
            self._begin("")

    async def _read(self, wire: RedisWire) -> None:
        with suppress(ResponseError, RedisDenied):  # not allowed: leaving waits for the end of a read
            self._client_id = await wire.command("CLIENT", "ID")
        await self._give_back(wire)
        self._begin(f"{self._broker.name}-{uuid.uuid4().hex}")
        self._sweep_at, first = 0.0, True
        # Acks from before `leave` are carried out: a stored message is not delivered again.
        while not self._leaving or self._settling.has_acks:
            self._wake.clear()
            arrived = await self._take(wire, first=first)
            first, self.subscribed = False, True
            if self._settling.has_acks or self._leaving:
                continue
            if self._credit <= 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._lease_seconds / RENEWALS):
                        await self._wake.wait()
            elif not arrived:
                await self._wait_for_new(wire)

    async def _take(self, wire: RedisWire, *, first: bool) -> bool:
        """Renew the lease, ack, and take entries; return whether there were any."""
        sweep = time.monotonic() >= self._sweep_at
        if sweep:
            self._sweep_at = time.monotonic() + SWEEP_SECONDS
        with self._settling.acks() as acks:
            # Acked entries make room in the same call.
            lease_had_ended, entries, swept, may_be_poison, denied = await wire.call(
                TAKE,
                self._prefix,
                self._queue,
                self._settling.name,
                str(int(self._lease_seconds * 1000)),
                str(0 if self._leaving else self._credit + len(acks)),
                "1" if sweep else "",
                str(DELIVERED_BYTES),
                *acks,
            )
        for consumer, returned in swept:
            log.info(
                LogEvent.BROKER_OWNER_LOST,
                url=self._url,
                queue=self._queue,
                owner=consumer.decode("utf-8", "replace"),
                returned=returned,
            )
        if denied:
            right, _, key = denied.decode().partition(" ")
            wire.denied(right, f"key {key}").log(CONSUMING)
        if lease_had_ended and not first:
            # This process was frozen for too long: other consumers have its entries by now.
            self._forget_held()
        deliveries = [
            StreamDelivery(
                entry_id, fields, failed_deliveries=count - 1, redelivered=bool(again), omitted_bytes=omitted
            )
            for entry_id, count, again, fields, omitted in entries
        ]
        self._deliver(self._without_poison(deliveries) if may_be_poison else deliveries)
        return bool(entries)

    async def _wait_for_new(self, wire: RedisWire) -> None:
        """Wait until a publisher says that there is an entry, or for a moment.

        XREADGROUP would deliver entries of any size; the script measures them first.
        """
        self._settling.reader_waits = True
        try:
            await wire.command(
                *("BZPOPMIN", f"{self._prefix}{self._queue}:new", WAIT_SECONDS),
                seconds=WAIT_SECONDS + WAIT_GRACE_SECONDS,
            )
        finally:
            self._settling.reader_waits = False

    def _deliver(self, deliveries: Sequence[StreamDelivery]) -> None:
        if deliveries:
            for one in deliveries:
                self._unsettled[one.tag] = one
            self._ready.extend(deliveries)
            self._resubscriber.arrived.set()

    def _without_poison(self, deliveries: Sequence[StreamDelivery]) -> Sequence[StreamDelivery]:
        """Return those that may be delivered; the others become dead letters."""
        poison = [one for one in deliveries if one.failed_deliveries >= MAX_DELIVERIES]
        self._settling.refuse_poison(
            (
                one,
                Refuse(
                    reason="too_many_deliveries",
                    detail=f"it was delivered {one.failed_deliveries} times and never settled",
                ),
            )
            for one in poison
        )
        return [one for one in deliveries if one.failed_deliveries < MAX_DELIVERIES]

    @property
    def _credit(self) -> int:
        return self._prefetch - len(self._unsettled) - len(self._settling.held)

    def _begin(self, name: str) -> None:
        """Start empty under a new name; the entries of the old name are returned later."""
        self.subscribed = False
        if self._settling.name:
            self._former.append(self._settling.name)
        self._settling.begin(name)
        self._forget_held()

    def _forget_held(self) -> None:
        self._ready.clear()
        self._unsettled.clear()
        self._settling.held.clear()

    async def _give_back(self, wire: RedisWire | None = None) -> None:
        """Return the entries of old names; a failed return happens when their leases end."""
        wire = wire or self._link.connection or self._broker.control.connection
        while self._former and wire is not None:
            try:
                await wire.call(LEAVE, self._prefix, self._queue, self._former[0])
            except RedisLost:
                return
            except RedisDenied as refused:
                refused.log(CONSUMING)
            except RedisRefusal as refused:
                log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=str(refused))
            self._former.pop(0)

    def close(self) -> None:
        """Cancel pending settlements; nothing is settled any more."""
        self._begin("")
        self._settling.close()
