"""Asks the forge for one comparison, call after call, within its limits and our claim."""

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from solstice_common.runtime.backoff import backoff_seconds
from solstice_forge.inbox.reconcile_state import ReconcileState
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import CallDone, CallPostponed, CallRefused, ForgeCall, Page

T = TypeVar("T")

LEASE_SECONDS: Final = 120.0
"""How long no other process takes the source after our last claim."""
TRIES: Final = 3
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 10.0
LEAST_WAIT_SECONDS: Final = 0.05
"""The shortest wait for a limit: two clocks that differ must not cause calls without end."""
MOST_PAGES: Final = 200
"""A longer list is too long to handle in one comparison."""

Sleep = Callable[[float], Awaitable[None]]


class ReconcileStopped(Exception):
    """The comparison of this source cannot continue now; its text says why."""


@dataclass(slots=True)
class ReconcileSession:
    """A session of calls to the forge of one source, claimed before unless `dry_run`."""

    remote: Remote
    tables: ReconcileState
    clock: Callable[[], float]
    sleep: Sleep
    rng: random.Random
    report_progress: Callable[[str], None]
    """Called with the reason of a wait, in words for people."""
    limit_wait_seconds: float
    """How long to wait for the forge's limits, in all."""
    dry_run: bool = False
    holder: str = field(default_factory=lambda: str(uuid.uuid4()))
    _claimed_until: float = 0.0

    async def claim(self, ended_before: float | None = None) -> bool:
        """Claim the source; return whether we hold it."""
        now = self.clock()
        claimed = self.dry_run or await self.tables.claim(
            self.remote.access.name,
            self.holder,
            now=now,
            until=now + LEASE_SECONDS,
            ended_before=ended_before,
        )
        self._claimed_until = now + LEASE_SECONDS if claimed else 0.0
        return claimed

    async def ensure_claimed(self) -> None:
        """Raise ReconcileStopped when another process took the source."""
        if self._claimed_until - self.clock() > LEASE_SECONDS / 2:
            return
        if not await self.claim():
            raise ReconcileStopped("another process compares this source now")

    async def pause(self, seconds: float, why: str) -> None:
        """Wait, and keep the claim."""
        if seconds >= 1.0:
            self.report_progress(f"waiting {seconds:.0f} s: {why}")
        left = seconds
        while left > 0:
            await self.ensure_claimed()
            step = min(left, LEASE_SECONDS / 4)
            await self.sleep(step)
            left -= step

    async def ask(self, call: ForgeCall[T]) -> CallDone[T] | CallPostponed | CallRefused:
        """Return the answer; try again what may succeed in a moment.

        Raises ReconcileStopped for a limit that lasts too long.
        """
        failures = 0
        while True:
            await self.ensure_claimed()
            answer = await self.remote.ask(call)
            if not isinstance(answer, CallPostponed):
                return answer
            wait = max(answer.at - self.clock(), 0.0)
            if answer.limited:
                if wait > self.limit_wait_seconds:
                    raise ReconcileStopped(f"the forge's rate limit lasts for another {wait:.0f} s")
                wait = max(wait, LEAST_WAIT_SECONDS)
                self.limit_wait_seconds -= wait
                await self.pause(wait, "the forge's rate limit")
                continue
            failures += 1
            if failures == TRIES or (call.writes and answer.perhaps_done):
                return answer
            backoff = backoff_seconds(
                failures - 1,
                rng=self.rng,
                base_seconds=FIRST_RETRY_SECONDS,
                cap_seconds=LAST_RETRY_SECONDS,
            )
            await self.pause(max(wait, backoff), answer.why)

    async def pages(self, call: ForgeCall[Page[T]]) -> AsyncIterator[Page[T]]:
        """Yield page after page, until the caller has enough; raises Unanswered when one fails."""
        following: ForgeCall[Page[T]] | None = call
        for _ in range(MOST_PAGES):
            if following is None:
                return
            answer = await self.ask(following)
            if not isinstance(answer, CallDone):
                raise Unanswered(answer)
            yield answer.value
            following = answer.value.next
        if following is not None:
            raise Unanswered(CallRefused(status=0, detail=f"its list has more than {MOST_PAGES} pages"))

    async def all_items(self, call: ForgeCall[Page[T]]) -> list[T]:
        """Return all items of a list; raises as `pages`."""
        return [item async for page in self.pages(call) for item in page.items]


class Unanswered(Exception):
    """The forge did not answer a question, or refused it."""

    def __init__(self, answer: CallPostponed | CallRefused) -> None:
        super().__init__(answer)
        self.answer = answer

    @property
    def is_refusal(self) -> bool:
        """Whether the forge refused and will refuse again: there is nothing, or nothing for us."""
        return isinstance(self.answer, CallRefused)

    def __str__(self) -> str:
        match self.answer:
            case CallPostponed(why=why):
                return why
            case CallRefused(status=0, detail=detail):
                return detail
            case CallRefused(status=status, detail=detail):
                return f"{status} {detail}"
