"""Publishes dead letters again, and removes each once its message is confirmed."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts, facts_of
from solstice_common.broker.dead_letters.dead_letter_operations import EVERYTHING, browse
from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    DeadLetterQueues,
    Progress,
    no_progress,
)
from solstice_common.broker.dead_letters.other_readers import read_in_time
from solstice_common.broker.dead_letters.replay_message import NotReplayable, came_back, replay_message
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.protocol import Broker, Message, PublishStatus
from solstice_common.errors import BrokerUnavailable, DeadLettersInUse, RightMissing
from solstice_common.messages import Priority
from solstice_common.topology import Route

HOLD_SECONDS: Final = 300.0
"""How long a slow replay holds the queue's messages: RabbitMQ takes back what a consumer has held for half an
hour.
"""
IN_FLIGHT: Final = 100


@dataclass(kw_only=True)
class Replayed:
    """The result of a replay of one queue, by the ids of the dead letters."""

    replay_id: str
    queue: str
    sent: list[str] = field(default_factory=list)
    """Confirmed by the broker, and removed from the dead-letter queue unless the replay was interrupted."""
    kept: dict[str, str] = field(default_factory=dict)
    """A replay would have no effect, with what to do instead; they stay."""
    failed: dict[str, str] = field(default_factory=dict)
    """The broker did not accept them, with its reason; they stay."""
    came_back: list[DeadLetterFacts] = field(default_factory=list)
    """Refused again before we stopped watching, with their new ids."""
    not_read: str = ""
    """Why some were not read: another reader holds them; they stay."""
    waiting: int = 0
    """How many there were at the beginning, also of those that were not chosen."""
    broken_off: str = ""
    """Why it ended early: the connection to the broker was lost, or it was interrupted. The next replay sends again what the broker had confirmed
    just before.
    """

    @property
    def left(self) -> int:
        """How many are not sent, of those that waited at the beginning."""
        return max(0, self.waiting - len(self.sent))

    @property
    def went_well(self) -> bool:
        return not (self.failed or self.came_back or self.not_read or self.broken_off)

    def document(self) -> dict[str, Any]:
        return {
            "replay_id": self.replay_id,
            "queue": self.queue,
            "sent": self.sent,
            "kept": self.kept,
            "failed": self.failed,
            "came_back": [each.document() for each in self.came_back],
            "left": self.left,
            "not_read": self.not_read,
            "broken_off": self.broken_off,
        }


class Replay:
    """One replay of one dead-letter queue.

    Interrupted at any moment, it loses nothing, and the next one goes on. A message may then be published
    twice, with the same idempotency key: the stores accept it once.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        queues: DeadLetterQueues,
        dlq: str,
        route: Route,
        selection: Selection,
        replay_id: str,
        by: str,
        rate: float | None = None,
        most: float = math.inf,
        on_progress: Progress = no_progress,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`route` is that of the messages, of whose classes each takes its own.

        `rate`: at most so many messages a second. `most`: at most so many in all, the first ones of the queue. `by` says in
        the history who replayed.
        """
        self._broker = broker
        self._queues = queues
        self._queue = queues.queue(dlq)
        self._route = route
        self._selection = selection
        self._by = by
        self._rate = rate
        self._most = most
        self._on_progress = on_progress
        self._now = now
        self._began = now()
        self._sent: set[str] = set()
        self._bodies: set[bytes] = set()
        self._may_come_back_to = {dlq, *(route.of(each).dlq for each in Priority)}
        self._is_cut_off = False
        self._passed = 0
        self._budget: float = 0
        self.report = Replayed(replay_id=replay_id, queue=dlq)

    async def run(self, *, watch_seconds: float = 0.0) -> Replayed:
        """Replay every selected dead letter that waits now.

        Then wait `watch_seconds`, and note which messages were refused again. A lost connection to the broker
        ends the replay; the report says so.
        """
        try:
            await self._replay(watch_seconds)
        except RightMissing as error:
            if not self.report.sent:
                raise
            self.report.broken_off = str(error)
        except asyncio.CancelledError:
            self.report.broken_off = "interrupted"
            raise
        except DeadLettersInUse as error:
            self.report.not_read = str(error)
        except BrokerUnavailable as error:
            self.report.broken_off = str(error)
        return self.report

    async def _replay(self, watch_seconds: float) -> None:
        if (
            await read_in_time(self._queue, self._replay_waiting)
            and (held := await self._queue.in_use()) != 0
        ):
            self.report.not_read = str(DeadLettersInUse(self._queue.name, held))
        if self.report.sent and watch_seconds:
            await self._watch(watch_seconds)

    async def _replay_waiting(self) -> int:
        """Replay what waits; return how many were passed to us."""
        waiting = self.report.waiting = await self._queue.count() or 0
        while waiting:
            self._budget = HOLD_SECONDS * self._rate if self._rate else EVERYTHING
            await self._queue.take(self._handle, waiting, enough=self._is_over)
            if self._budget >= 1 or self._is_over():
                break
        return self._passed

    async def _handle(self, group: Sequence[DeadLetter]) -> Collection[str]:
        self._passed += len(group)
        gone: set[str] = set()
        messages: dict[str, Message] = {}
        for found in map(facts_of, group):
            if found.id in self._sent:
                gone.add(found.id)  # its copy, which a killed process left in the queue
            elif self._is_due(found):
                self._prepare(found, messages)
        waiting = list(messages.items())
        while waiting and self._budget >= 1 and not self._is_over():
            size = max(1, int(min(IN_FLIGHT, self._budget, self._left(), self._rate or IN_FLIGHT)))
            gone |= await self._publish(dict(waiting[:size]))
            waiting = waiting[size:]
        return gone

    def _left(self) -> float:
        """Return how many more may be published."""
        return self._most - len(self.report.sent) - len(self.report.failed)

    def _is_over(self) -> bool:
        return self._is_cut_off or self._left() <= 0

    def _is_due(self, found: DeadLetterFacts) -> bool:
        return (
            found.id not in self.report.failed
            and not came_back(found.dead_letter, self.report.replay_id)
            and self._selection.fits(found)
        )

    def _prepare(self, found: DeadLetterFacts, messages: dict[str, Message]) -> None:
        message = replay_message(
            found, self._route, replay_id=self.report.replay_id, by=self._by, at=self._now()
        )
        if isinstance(message, NotReplayable):
            self.report.kept[found.id] = message.why
        else:
            messages[found.id] = message

    async def _publish(self, messages: dict[str, Message]) -> set[str]:
        began = time.monotonic()
        outcomes = await self._broker.publish(list(messages.values()))
        self._budget -= len(messages)
        confirmed: set[str] = set()
        for (dead_letter_id, message), outcome in zip(messages.items(), outcomes, strict=True):
            if outcome.confirmed:
                confirmed.add(dead_letter_id)
                self._bodies.add(sha256(message.body).digest())
            else:
                words = f"{outcome.status}: {outcome.detail}"
                if outcome.lacks_right:
                    self._is_cut_off = True
                elif outcome.status is PublishStatus.UNKNOWN:
                    # No connection: the rest would fail one confirm timeout after the other.
                    self._is_cut_off = True
                    words += " (it may have arrived; another replay sends it again, and it counts once)"
                self.report.failed[dead_letter_id] = words
        self._sent |= confirmed
        self.report.sent += [each for each in messages if each in confirmed]
        self._on_progress(len(self.report.sent))
        if self._rate:
            await asyncio.sleep(max(0.0, len(messages) / self._rate - (time.monotonic() - began)))
        return confirmed

    async def _watch(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for name in sorted(self._may_come_back_to):
            if await self._queues.queue(name).count():
                found = await browse(self._queues, [name], Selection(), self._if_it_came_back)
                self.report.came_back += filter(None, found)

    def _if_it_came_back(self, found: DeadLetterFacts) -> DeadLetterFacts | None:
        return found.brief() if self._is_of_this_replay(found) else None

    def _is_of_this_replay(self, found: DeadLetterFacts) -> bool:
        """Whether it came back: by its body, and its header or time."""
        return found.dead_letter.digest in self._bodies and (
            came_back(found.dead_letter, self.report.replay_id)
            or (found.dead_since is not None and found.dead_since >= self._began)
        )
