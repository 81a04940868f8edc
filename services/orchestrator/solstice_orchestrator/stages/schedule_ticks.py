"""Fire the ticks of schedules: look up the branch's commit and admit a request.

The forge is asked under a lease, outside of every transaction. One transaction admits the request and moves the
schedule to its next tick, so each tick fires once, even when an orchestrator dies.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.periodic import on_notification
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE
from solstice_orchestrator.git.command import CheckoutFailed
from solstice_orchestrator.git.heads import Branch
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.store.schedule_store import ClaimedTicks, ScheduleStore, SettledTick, TickTask
from solstice_orchestrator.worker.log_buffer import retry_while_unavailable

log = structlog.get_logger(__name__)

AT_ONCE: Final = 16
"""Branches that are looked up at once."""
POLL_SECONDS: Final = 30.0
"""How late a tick is noticed after a lost notification or a clock jump."""
RETRY_SECONDS: Final = 5.0
"""The pause between two polls while the store is unavailable."""
LEAST_SECONDS: Final = 0.02
"""The shortest pause between two polls, while another orchestrator may be claiming a due tick."""
HAND_BACK_SECONDS: Final = 5.0

BranchHeadLookup = Callable[[Branch], Awaitable[str | None]]
"""Returns the commit of a branch; None when there is no such branch. Raises CheckoutFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRunner:
    """Fires the ticks that this orchestrator claims."""

    schedule_store: ScheduleStore
    worker_id: str
    head_of: BranchHeadLookup
    metrics: Metrics
    rng: random.Random

    async def run(self) -> None:
        """Fire ticks until cancelled; then hand back those under way."""
        permits = asyncio.Semaphore(AT_ONCE)
        async with self.schedule_store.changes() as changed, asyncio.TaskGroup() as firing:
            await on_notification(
                partial(self._fire_due, permits, firing),
                notified=changed,
                retry_seconds=RETRY_SECONDS,
                rng=self.rng,
                log=log,
                failed=LogEvent.SCHEDULES_PAUSED,
            )

    async def _fire_due(self, permits: asyncio.Semaphore, firing: asyncio.TaskGroup) -> float:
        """Claim due ticks; return the seconds until the next poll."""
        # Even with many notifications, this delays a tick by at most LEAST_SECONDS.
        await asyncio.sleep(LEAST_SECONDS)
        await permits.acquire()
        permits.release()
        claimed = await self._claim()
        for settled in claimed.settled:
            self._log_settled(settled)
        for task in claimed.tasks:
            firing.create_task(self._fire(task, permits), name=f"tick of {task.schedule}")
        # Each task begins now: a task that is cancelled before it starts would not hand its tick back.
        await asyncio.sleep(0)
        if claimed.more:
            return 0.0
        due_in = await self.schedule_store.pause_seconds()
        return POLL_SECONDS if due_in is None else min(due_in, POLL_SECONDS)

    async def _claim(self) -> ClaimedTicks:
        claiming = asyncio.ensure_future(self.schedule_store.claim(self.worker_id, AT_ONCE))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The store may have given us ticks already: they go back, since no task here will fire them.
            with contextlib.suppress(StoreUnavailable):
                await self._hand_back(*(await claiming).tasks)
            raise

    async def _hand_back(self, *tasks: TickTask) -> None:
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(HAND_BACK_SECONDS):
                for task in tasks:
                    await self.schedule_store.release(task)

    async def _fire(self, task: TickTask, permits: asyncio.Semaphore) -> None:
        try:
            async with permits:
                settled = await self._tried(task)
        except StoreUnavailable as error:
            # Its lease runs out, and an orchestrator tries again.
            log.warning(LogEvent.SCHEDULES_PAUSED, detail=str(error))
        except asyncio.CancelledError:
            await self._hand_back(task)
            raise
        except Exception:
            log.exception(
                LogEvent.TICK_FIRING_CRASHED, schedule=task.schedule, tick_at=format_seconds(task.tick_at)
            )
        else:
            if settled is None:
                log.info(LogEvent.TICK_LOST, schedule=task.schedule, tick_at=format_seconds(task.tick_at))
            else:
                self._log_settled(settled)

    async def _tried(self, task: TickTask) -> SettledTick | None:
        retry = False
        try:
            commit = await self.head_of(Branch(repo_url=task.repo_url, ref=task.ref))
        except CheckoutFailed as error:
            retry = error.reason in INFRASTRUCTURE
            reason, detail = (TickReason.FORGE_AWAY if retry else TickReason.UNREADABLE), error.detail
        else:
            if commit is not None:
                return await retry_while_unavailable(
                    lambda: self.schedule_store.fired(task, commit), self.rng
                )
            reason, detail = TickReason.BRANCH_GONE, f"{task.repo_url} has no {task.ref}"
        return await retry_while_unavailable(
            lambda: self.schedule_store.not_fired(task, reason, detail, retry=retry), self.rng
        )

    def _log_settled(self, settled: SettledTick) -> None:
        bound = log.bind(schedule=settled.schedule, tick_at=format_seconds(settled.tick_at))
        if settled.state is TickState.DUE:
            bound.warning(LogEvent.TICK_DELAYED, detail=settled.detail)
            return
        self.metrics.tick_settled(settled.state, settled.reason, settled.count, settled.late_seconds)
        if settled.state is TickState.FIRED:
            bound.info(
                LogEvent.TICK_FIRED,
                run_id=settled.run_id,
                reason=settled.reason,
                late_seconds=round(settled.late_seconds, 3),
            )
        else:
            bound.warning(
                LogEvent.TICK_NOT_FIRED,
                state=settled.state,
                reason=settled.reason,
                detail=settled.detail,
                ticks=settled.count,
            )
