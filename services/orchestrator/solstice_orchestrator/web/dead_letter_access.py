"""Gives the web part access to dead letters, one operation at a time."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from solstice_common.broker import Broker, DeadLetterQueues, open_dead_letter_queues
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import browse, drop
from solstice_common.broker.dead_letters.dead_letter_routes import DeadLetterRoute, chosen_routes
from solstice_common.broker.dead_letters.replaying import Replay, Replayed
from solstice_common.broker.dead_letters.selection import LEAST_OF_AN_ID, Selection
from solstice_common.errors import BrokerUnavailable, ConfigurationError, DeadLettersInUse
from solstice_common.settings import BrokerSettings
from solstice_orchestrator.web.formats.refusals import HttpRefusal

CONNECTION: Final = "orchestrator (dead letters)"
CONNECT_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 10.0
"""How long a caller waits for the operation before it."""
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class DeadLetterAccess:
    """The web part's access to dead letters.

    Each operation has a connection of its own. There is one operation at a time: on RabbitMQ, reading holds
    the whole queue, and a second reader at that moment would see it empty.
    """

    broker: Broker
    """The broker to which replays publish."""
    settings: BrokerSettings
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    def routes(self, names: Sequence[str] = ()) -> Sequence[DeadLetterRoute]:
        """These dead-letter queues; all without a name.

        HttpRefusal 400 for an unknown one.
        """
        try:
            return chosen_routes(self.settings, names)
        except ConfigurationError as error:
            raise HttpRefusal(400, "invalid_parameter", f"{error}.") from None

    def kind(self, found: DeadLetterFacts) -> str:
        """Whether it is among the `requests`, `cancels` or `statuses`."""
        (route,) = chosen_routes(self.settings, [found.dead_letter.queue])
        return route.kind

    @asynccontextmanager
    async def queues(self) -> AsyncIterator[DeadLetterQueues]:
        """Open the dead-letter queues.

        HttpRefusal 503 while the broker is unavailable, or another operation or reader uses them.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._lock.acquire()
        except TimeoutError:
            raise HttpRefusal(
                503, "unavailable", "Dead letters are being replayed or removed right now. Try again later."
            ) from None
        try:
            async with AsyncExitStack() as stack:
                yield await self._opened(stack)
        except (BrokerUnavailable, ConfigurationError) as error:
            raise HttpRefusal(503, "unavailable", f"{error}. Try again later.") from error
        except DeadLettersInUse as error:
            raise HttpRefusal(503, "unavailable", f"{error}.") from error
        finally:
            self._lock.release()

    async def browse(self, routes: Iterable[DeadLetterRoute], selection: Selection) -> list[DeadLetterFacts]:
        """Return the selected dead letters in brief, by queue and age.

        Changes nothing. Raises HttpRefusal 503.
        """
        return await self._browse(routes, selection, DeadLetterFacts.brief)

    async def find(self, routes: Iterable[DeadLetterRoute], dead_letter_id: str) -> DeadLetterFacts | None:
        """Return the only dead letter whose id begins so; None for none or several.

        Changes nothing. Raises HttpRefusal 503.
        """
        if len(dead_letter_id) < LEAST_OF_AN_ID:
            return None
        first: list[DeadLetterFacts] = []

        def keep(found: DeadLetterFacts) -> DeadLetterFacts:
            # A stranger can publish thousands whose ids begin alike.
            facts = found.brief() if first else found
            first[:] = [facts]
            return facts

        found = await self._browse(routes, Selection(ids=(dead_letter_id,)), keep)
        return found[0] if len(found) == 1 else None

    async def _browse(
        self,
        routes: Iterable[DeadLetterRoute],
        selection: Selection,
        keep: Callable[[DeadLetterFacts], DeadLetterFacts],
    ) -> list[DeadLetterFacts]:
        async with self.queues() as queues:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await browse(queues, [each.dlq for each in routes], selection, keep)
            except TimeoutError:
                raise BrokerUnavailable(queues.url, f"no answer within {ANSWER_SECONDS:.0f} s") from None

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
    """A replay or removal of selected dead letters; `done` counts while it runs.

    Cancel it to stop it. Nothing is lost then: the remaining dead letters stay in their queues.
    """

    access: DeadLetterAccess
    routes: Sequence[DeadLetterRoute]
    ids: Sequence[str]
    """Whole ids of the dead letters that the person saw, and no later ones."""
    by: str
    """The requester, for the history of each replayed message."""
    done: int = 0
    gone: int = 0
    """Ids that were no longer there: another replay or removal was faster."""
    replayed: list[Replayed] = field(default_factory=list)
    """The results of a replay, one for each queue."""

    async def replay(self, *, watch_seconds: float = 0.0) -> None:
        """Publish each and remove it once confirmed.

        Then wait `watch_seconds` for messages that are refused again.
        """
        async with self.access.queues() as queues:
            for route in self.routes:
                replay = Replay(
                    broker=self.access.broker,
                    queues=queues,
                    dlq=route.dlq,
                    route=route.replays,
                    selection=Selection(ids=self.ids),
                    replay_id=uuid.uuid4().hex,
                    by=self.by,
                    on_progress=self._counted_from(self.done),
                )
                self.replayed.append(await replay.run(watch_seconds=watch_seconds))
        settled = sum(len(each.sent) + len(each.kept) + len(each.failed) for each in self.replayed)
        # Dead letters that a replay has not reached are still there.
        is_whole = not any(each.broken_off or each.not_read for each in self.replayed)
        self.gone = max(0, len(self.ids) - settled) if is_whole else 0

    async def drop(self) -> None:
        """Remove each permanently."""
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
