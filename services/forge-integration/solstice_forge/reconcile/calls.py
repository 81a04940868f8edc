"""The forge's answers to one comparison: asked one after the other, within its limits, while the source is ours."""

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from solstice_common.runtime.backoff import backoff_seconds
from solstice_forge.inbox.reconcile_state import ReconcileState
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import Done, ForgeCall, Later, Never, Page

T = TypeVar("T")

LEASE_SECONDS: Final = 120.0
"""So long nobody else takes the source after we were last heard of."""
TRIES: Final = 3
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 10.0
LEAST_WAIT_SECONDS: Final = 0.05
"""A limit that is over already, by two clocks that differ, is not asked about without end."""
MOST_PAGES: Final = 200
"""What is longer than this is not a list that we could deal with in one go."""

Sleep = Callable[[float], Awaitable[None]]


class ReconcileStopped(Exception):
    """The comparison of this source cannot go on now; its words say why."""


@dataclass(slots=True)
class ReconcileSession:
    """Asks the forge of one source. Claims the source before it does, unless `dry_run`."""

    remote: Remote
    tables: ReconcileState
    clock: Callable[[], float]
    sleep: Sleep
    rng: random.Random
    report_progress: Callable[[str], None]
    """Told what it waits for, in words for people."""
    limit_wait_seconds: float
    """So long the forge's limits are waited for, in all."""
    dry_run: bool = False
    holder: str = field(default_factory=lambda: str(uuid.uuid4()))
    _claimed_until: float = 0.0

    async def claim(self, ended_before: float | None = None) -> bool:
        """Whether the source is ours."""
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
        """Raises Stopped when somebody else took the source."""
        if self._claimed_until - self.clock() > LEASE_SECONDS / 2:
            return
        if not await self.claim():
            raise ReconcileStopped("somebody else compares this source now")

    async def pause(self, seconds: float, why: str) -> None:
        """Wait, and stay the one who compares."""
        if seconds >= 1.0:
            self.report_progress(f"waiting {seconds:.0f} s: {why}")
        left = seconds
        while left > 0:
            await self.ensure_claimed()
            step = min(left, LEASE_SECONDS / 4)
            await self.sleep(step)
            left -= step

    async def ask(self, call: ForgeCall[T]) -> Done[T] | Later | Never:
        """The answer; what may be better in a moment is tried again. Raises Stopped for a limit that lasts too long."""
        failures = 0
        while True:
            await self.ensure_claimed()
            answer = await self.remote.ask(call)
            if not isinstance(answer, Later):
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
        """Page after page, until the caller has enough; raises Unanswered when one of them is not to be had."""
        following: ForgeCall[Page[T]] | None = call
        for _ in range(MOST_PAGES):
            if following is None:
                return
            answer = await self.ask(following)
            if not isinstance(answer, Done):
                raise Unanswered(answer)
            yield answer.value
            following = answer.value.next
        if following is not None:
            raise Unanswered(Never(status=0, detail=f"its list has more than {MOST_PAGES} pages"))

    async def all_items(self, call: ForgeCall[Page[T]]) -> list[T]:
        """All items of a list; raises as `pages`."""
        return [item async for page in self.pages(call) for item in page.items]


class Unanswered(Exception):
    """The forge did not answer a question, or said no."""

    def __init__(self, answer: Later | Never) -> None:
        super().__init__(answer)
        self.answer = answer

    @property
    def is_refusal(self) -> bool:
        """It said no, and will again: there is nothing, or nothing for us."""
        return isinstance(self.answer, Never)

    def __str__(self) -> str:
        match self.answer:
            case Later(why=why):
                return why
            case Never(status=0, detail=detail):
                return detail
            case Never(status=status, detail=detail):
                return f"{status} {detail}"
