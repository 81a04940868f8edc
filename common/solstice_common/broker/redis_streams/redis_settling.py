"""Settles entries of one queue of Redis, and repeats that until the server has answered.

The reader's next call, which takes new entries, carries acks along: one call, and one sync of the server, for both.
The broker's control link carries acks while the reader waits for new entries, and all other verdicts.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict, retry_seconds
from solstice_common.broker.dropping import OnDropped, drop
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.links.missing_rights import CONSUMING
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivered, Delivery, new_message_id
from solstice_common.broker.redis_streams.redis_consumer_scripts import SETTLE
from solstice_common.broker.redis_streams.redis_wire import RedisDenied, RedisLost, RedisRefusal, RedisWire
from solstice_common.broker.redis_streams.stream_entries import StreamDelivery, dead_meta
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

AGAIN_BASE_SECONDS: Final = 0.2
AGAIN_CAP_SECONDS: Final = 5.0
"""The longest backoff before the server is called again."""

Settlement = tuple[str, bytes, str, bytes]
"""The verdict, the entry's id, and the routing key and meta of its dead letter."""

log = structlog.get_logger(__name__)


class RedisSettlingBroker(Protocol):
    """What settling needs from the broker."""

    @property
    def name(self) -> str: ...

    @property
    def control(self) -> SupervisedLink[RedisWire]:
        """The link for everything but reading."""
        ...

    @property
    def on_dropped(self) -> OnDropped | None:
        """Set where poison messages are dropped instead of becoming dead letters."""
        ...


class RedisSettling:
    """The settling of the entries that the consumer holds under its present name."""

    def __init__(
        self,
        broker: RedisSettlingBroker,
        *,
        prefix: str,
        queue: str,
        rng: random.Random,
        wake_reader: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._prefix = prefix
        self._queue = queue
        self._rng = rng
        self._wake_reader = wake_reader
        self._tasks: set[asyncio.Task[None]] = set()
        self._acks: list[bytes] = []
        self._acked: asyncio.Future[None] | None = None
        """Done when the server has `_acks`, or we no longer hold the entries."""
        self.name = ""
        """The consumer's name at the server; "" while there is none."""
        self.held: set[bytes] = set()
        """Settled here, and still pending for us on the server."""
        self.reader_waits = False
        """Whether the reader waits for new entries and makes no call until then."""

    async def settle(self, decided: Iterable[tuple[StreamDelivery, Verdict]]) -> None:
        """Settle entries; return when the server has all verdicts but the retries."""
        acks: list[bytes] = []
        settlements: list[Settlement] = []
        for one, verdict in decided:
            match verdict:
                case Ack():
                    acks.append(one.tag)
                case Retry():
                    self._spawn(self._return_later(one.tag, one.failed_deliveries))
                case Refuse():
                    settlements.append(self._dead_letter(one, verdict))
            self.held.add(one.tag)
        if acks and self.name and not self.reader_waits:
            # A cancelled caller does not cancel it: other callers may wait for the same acks.
            await asyncio.shield(self._with_the_reader(acks))
        else:
            settlements += [("ack", tag, "", b"") for tag in acks]
        if settlements:
            # A cancelled caller does not cancel it: half of the verdicts would be of no use.
            await asyncio.shield(self._spawn(self._carry_out(settlements)))

    def begin(self, name: str) -> None:
        """Start empty under a new name; end the waits for acks of the old one."""
        self.name = name
        self.held.clear()
        with self.acks():
            pass

    @property
    def has_acks(self) -> bool:
        """Whether acks wait for the next call of the reader."""
        return bool(self._acks)

    @contextmanager
    def acks(self) -> Iterator[Sequence[bytes]]:
        """Yield the ids of entries to ack, for one call of the reader.

        The reader gives up its name when that call fails.
        """
        acks, acked = self._acks, self._acked
        self._acks, self._acked = [], None
        try:
            yield acks
            self.held.difference_update(acks)
        finally:
            if acked is not None:
                acked.set_result(None)

    def refuse_poison(self, poison: Iterable[tuple[StreamDelivery, Refuse]]) -> None:
        """Begin to refuse entries that no consumer has ever settled."""
        settlements: list[Settlement] = []
        for one, why in poison:
            self.held.add(one.tag)
            if self._broker.on_dropped is None:
                settlements.append(self._dead_letter(one, why))
                continue
            drop(self._broker.on_dropped, self._queue, one.correlation_id, why.reason)
            settlements.append(("ack", one.tag, "", b""))
        if settlements:
            self._spawn(self._carry_out(settlements))

    def close(self) -> None:
        """Cancel pending settlements; nothing is settled any more."""
        for task in list(self._tasks):
            task.cancel()

    async def _carry_out(self, settlements: Sequence[Settlement]) -> None:
        """Settle on the server; repeat until it answers or we no longer hold the entries."""
        name, failures = self.name, 0
        while name and self.name == name:
            wire = await self._broker.control.connected()
            if self.name != name:
                return
            arguments = [argument for settlement in settlements for argument in settlement]
            try:
                unroutable, dropped, _ = await wire.call(SETTLE, self._prefix, self._queue, name, *arguments)
            except (RedisLost, RedisRefusal) as failed:
                if isinstance(failed, RedisDenied):
                    failed.log(CONSUMING)
                else:
                    log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=str(failed))
                failures += 1
                await asyncio.sleep(
                    backoff_seconds(
                        failures,
                        rng=self._rng,
                        base_seconds=AGAIN_BASE_SECONDS,
                        cap_seconds=AGAIN_CAP_SECONDS,
                    )
                )
                continue
            self._log_failed(unroutable, dropped)
            for entry_id in unroutable:
                self._spawn(self._return_later(entry_id, 0))
            if self.name == name:
                self.held.difference_update(
                    settlement[1] for settlement in settlements if settlement[1] not in unroutable
                )
                self._wake_reader()
            return

    async def _return_later(self, entry_id: bytes, failed_deliveries: int) -> None:
        name = self.name
        await asyncio.sleep(retry_seconds(failed_deliveries, self._rng))
        if self.name == name:
            await self._carry_out([("retry", entry_id, "", b"")])

    def _dead_letter(self, one: StreamDelivery, why: Refuse) -> Settlement:
        try:
            meta = self._dead_meta(one, one.fields, why)
        except Exception:
            # A bug costs only the properties of this message: the reason must arrive, and the process go on.
            log.exception(LogEvent.DEAD_LETTER_FAILED, queue=self._queue, reason=why.reason)
            meta = self._dead_meta(Delivered(body=b"", tag=one.tag), {}, why)
        return ("dead", one.tag, one.routing_key, meta)

    def _dead_meta(self, one: Delivery, fields: Mapping[bytes, bytes], why: Refuse) -> bytes:
        headers = refusal_headers(one, why, queue=self._queue, by=self._broker.name, at=datetime.now(UTC))
        return dead_meta(fields, routing_key=one.routing_key, message_id=new_message_id(), headers=headers)

    def _with_the_reader(self, acks: Sequence[bytes]) -> "asyncio.Future[None]":
        self._acks += acks
        if self._acked is None:
            self._acked = asyncio.get_running_loop().create_future()
        self._wake_reader()
        return self._acked

    def _log_failed(self, unroutable: Sequence[bytes], dropped: int) -> None:
        if dropped:
            log.error(
                LogEvent.DEAD_LETTER_FAILED,
                queue=self._queue,
                reason="dropped",
                detail=f"{dropped} refused: the queue was declared without a dead-letter exchange",
            )
        for _ in unroutable:
            log.error(
                LogEvent.DEAD_LETTER_FAILED,
                queue=self._queue,
                reason="unroutable",
                detail="no queue is bound to the dead-letter exchange; the message stays in its queue",
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=f"broker-settle-{self._queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
