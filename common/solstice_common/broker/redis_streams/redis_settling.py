"""Settles entries of one queue of Redis, and repeats that until the server has answered."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict, retry_seconds
from solstice_common.broker.dropping import OnDropped, drop
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivered, new_message_id
from solstice_common.broker.redis_streams.redis_scripts import SETTLE
from solstice_common.broker.redis_streams.redis_wire import RedisLost, RedisRefusal, RedisWire
from solstice_common.broker.redis_streams.stream_entries import COUNT_HEADER, dead_meta
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

AGAIN_BASE_SECONDS: Final = 0.2
AGAIN_CAP_SECONDS: Final = 5.0
"""The longest backoff before the server is called again."""

Fields = Mapping[bytes, bytes]
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
    """Settles the entries that the consumer holds under its present name."""

    def __init__(
        self,
        broker: RedisSettlingBroker,
        *,
        prefix: str,
        queue: str,
        rng: random.Random,
        has_room: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._prefix = prefix
        self._queue = queue
        self._rng = rng
        self._has_room = has_room
        self._tasks: set[asyncio.Task[None]] = set()
        self.name = ""
        """The consumer's name at the server; "" while there is none."""
        self.held: set[object] = set()
        """Settled here, and still pending for us on the server."""

    async def settle(self, decided: Iterable[tuple[Delivered, Fields, Verdict]]) -> None:
        """Settle entries; return when the server has all verdicts but the retries."""
        settlements: list[Settlement] = []
        for one, fields, verdict in decided:
            self.held.add(one.tag)
            match verdict:
                case Ack():
                    settlements.append(("ack", _id(one), "", b""))
                case Retry():
                    self._spawn(self._return_later(one))
                case Refuse():
                    settlements.append(self._dead_letter(one, fields, verdict))
        if settlements:
            # A cancelled caller does not cancel it: half of the verdicts would be of no use.
            await asyncio.shield(self._spawn(self._carry_out(settlements)))

    def refuse_poison(self, poison: Iterable[tuple[Delivered, Fields, Refuse]]) -> None:
        """Begin to refuse entries that no consumer has ever settled."""
        settlements: list[Settlement] = []
        for one, fields, why in poison:
            self.held.add(one.tag)
            if self._broker.on_dropped is None:
                settlements.append(self._dead_letter(one, fields, why))
                continue
            drop(self._broker.on_dropped, self._queue, one.correlation_id, why.reason)
            settlements.append(("ack", _id(one), "", b""))
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
                homeless, dropped, _ = await wire.call(SETTLE, self._prefix, self._queue, name, *arguments)
            except (RedisLost, RedisRefusal) as failed:
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
            self._log_failed(homeless, dropped)
            for entry_id in homeless:
                self._spawn(self._return_later(Delivered(body=b"", tag=entry_id)))
            if self.name == name:
                self.held.difference_update(
                    settlement[1] for settlement in settlements if settlement[1] not in homeless
                )
                self._has_room()
            return

    async def _return_later(self, one: Delivered) -> None:
        name = self.name
        count = one.headers.get(COUNT_HEADER, 0)
        await asyncio.sleep(retry_seconds(count if isinstance(count, int) else 0, self._rng))
        if self.name == name:
            await self._carry_out([("retry", _id(one), "", b"")])

    def _dead_letter(self, one: Delivered, fields: Fields, why: Refuse) -> Settlement:
        try:
            meta = self._dead_meta(one, fields, why)
        except Exception:
            # A bug costs only the properties of this message: the reason must arrive, and the process go on.
            log.exception(LogEvent.DEAD_LETTER_FAILED, queue=self._queue, reason=why.reason)
            meta = self._dead_meta(Delivered(body=b"", tag=one.tag), {}, why)
        return ("dead", _id(one), one.routing_key, meta)

    def _dead_meta(self, one: Delivered, fields: Fields, why: Refuse) -> bytes:
        headers = refusal_headers(one, why, queue=self._queue, by=self._broker.name, at=datetime.now(UTC))
        return dead_meta(fields, routing_key=one.routing_key, message_id=new_message_id(), headers=headers)

    def _log_failed(self, homeless: Sequence[bytes], dropped: int) -> None:
        if dropped:
            log.error(
                LogEvent.DEAD_LETTER_FAILED,
                queue=self._queue,
                reason="dropped",
                detail=f"{dropped} refused: the queue was declared without a dead-letter exchange",
            )
        for _ in homeless:
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


def _id(one: Delivered) -> bytes:
    assert isinstance(one.tag, bytes)  # noqa: S101  ours: `delivered` made it
    return one.tag
