"""Dead letters for the web part: looks, replays and removals, one at a time."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from solstice_common.broker import Broker, DeadLetterQueues, open_dead_letter_queues
from solstice_common.broker.dead_letters.dead_letter_routes import chosen_routes
from solstice_common.broker.dead_letters.findings import Finding
from solstice_common.broker.dead_letters.looking import drop, look
from solstice_common.broker.dead_letters.replay_message import NotReplayable, replay_message
from solstice_common.broker.dead_letters.replaying import Replay, Replayed
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.errors import BrokerUnavailable, ConfigurationError
from solstice_common.settings import BrokerSettings
from solstice_common.topology import Route
from solstice_orchestrator.web.formats.refusals import HttpRefusal

CONNECTION: Final = "orchestrator (dead letters)"
CONNECT_SECONDS: Final = 5.0
TURN_SECONDS: Final = 10.0
"""A caller waits so long for the look or replay before it."""
LOOK_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class DeadLetterAccess:
    """What the web part needs for dead letters.

    Each use has a connection of its own. One use at a time: on RabbitMQ a look holds the whole queue, and a second one at that moment would see it empty.
    """

    broker: Broker
    """Publishes what is replayed."""
    settings: BrokerSettings
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    def routes(self, names: Sequence[str] = ()) -> Sequence[Route]:
        """The routes of these dead-letter queues; all without a name.

        HttpRefusal 400 for an unknown one.
        """
        try:
            return chosen_routes(self.settings, names)
        except ConfigurationError as error:
            raise HttpRefusal(400, "invalid_parameter", f"{error}.") from None

    @asynccontextmanager
    async def queues(self) -> AsyncIterator[DeadLetterQueues]:
        """Open the dead-letter queues.

        HttpRefusal 503 while the broker is away or others use them.
        """
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise HttpRefusal(
                503, "unavailable", "Dead letters are being replayed or removed right now. Try again later."
            ) from None
        try:
            async with AsyncExitStack() as stack:
                yield await self._opened(stack)
        except (BrokerUnavailable, ConfigurationError) as error:
            raise HttpRefusal(503, "unavailable", f"{error}. Try again later.") from error
        finally:
            self._turn.release()

    async def look(self, routes: Iterable[Route], selection: Selection) -> list[Finding]:
        """The chosen dead letters, by queue and age.

        Changes nothing. Raises HttpRefusal 503.
        """
        async with self.queues() as queues:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await look(queues, routes, selection)
            except TimeoutError:
                raise BrokerUnavailable(queues.url, f"no answer within {LOOK_SECONDS:.0f} s") from None

    async def _opened(self, stack: AsyncExitStack) -> DeadLetterQueues:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await stack.enter_async_context(
                    open_dead_letter_queues(self.settings.amqp_url, name=CONNECTION)
                )
        except TimeoutError:
            raise BrokerUnavailable(
                self.broker.url, f"no connection within {CONNECT_SECONDS:.0f} s"
            ) from None


@dataclass(kw_only=True)
class DeadLetterWork:
    """A replay or removal of chosen dead letters; `done` counts while it runs.

    It is stopped by cancelling it. Nothing is lost then: what was not done stays where it is.
    """

    access: DeadLetterAccess
    routes: Sequence[Route]
    ids: Sequence[str]
    """Whole ids of those that a person was shown: no others that came meanwhile."""
    by: str
    """Who asked; a line of each replayed message's history says so."""
    done: int = 0
    gone: int = 0
    """Those that were not there any more: another replay or removal was faster."""
    replayed: list[Replayed] = field(default_factory=list)
    """What a replay came to, one for each queue."""

    async def replay(self, *, watch_seconds: float = 0.0) -> None:
        """Publish each and remove it once confirmed.

        Then wait `watch_seconds` for what comes back dead.
        """
        async with self.access.queues() as queues:
            for route in self.routes:
                replay = Replay(
                    broker=self.access.broker,
                    queue=queues.queue(route.dlq),
                    route=route,
                    selection=Selection(ids=self.ids),
                    replay_id=uuid.uuid4().hex,
                    by=self.by,
                    on_progress=self._counted_from(self.done),
                )
                self.replayed.append(await replay.run(watch_seconds=watch_seconds))
        settled = sum(len(each.sent) + len(each.kept) + len(each.failed) for each in self.replayed)
        # What a replay that broke off has not reached is still there.
        is_whole = not any(each.broken_off for each in self.replayed)
        self.gone = max(0, len(self.ids) - settled) if is_whole else 0

    async def drop(self) -> None:
        """Remove each for good."""
        removed = 0
        async with self.access.queues() as queues:
            for route in self.routes:
                removed += len(
                    await drop(
                        queues.queue(route.dlq),
                        Selection(ids=self.ids),
                        on_progress=self._counted_from(self.done),
                    )
                )
        self.done, self.gone = removed, max(0, len(self.ids) - removed)

    def _counted_from(self, before: int) -> Callable[[int], None]:
        def count(done: int) -> None:
            self.done = before + done

        return count


def reason_to_stay(access: DeadLetterAccess, found: Finding) -> str:
    """Why a replay would keep a dead letter; empty when it would not."""
    (route,) = chosen_routes(access.settings, [found.dead_letter.queue])
    message = replay_message(found, route, replay_id="dry-run", by="", at=datetime.now(UTC))
    return message.why if isinstance(message, NotReplayable) else ""
