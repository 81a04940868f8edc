"""The leader sends stored statuses to the forges, each context in order.

Each forge has its own pace.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import structlog

from solstice_common.broker.forwarder import Forwarder, reason_of
from solstice_common.broker.protocol import Broker, Message, Published
from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.runtime.pausing import Timer
from solstice_common.runtime.periodic import periodic
from solstice_common.topology import STATUSES, Topology
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import Remote
from solstice_forge.statuses.call_endings import DEFAULT_RETRY_RULES, RetryRules
from solstice_forge.statuses.protocol import SETTLED_DAYS, OutgoingStatus, StatusDeadLetter, StatusStore
from solstice_forge.statuses.source_reporter import POLL_SECONDS, SourceReporter, not_traced

log = structlog.get_logger(__name__)

PURGE_SECONDS: Final = 3600.0
COUNT_SECONDS: Final = 15.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0


class StatusReporter:
    """The sender of the statuses of all sources, from the store."""

    def __init__(
        self,
        *,
        store: StatusStore,
        remotes: Mapping[str, Remote],
        broker: Broker,
        topology: Topology,
        metrics: Metrics,
        rng: random.Random,
        rules: RetryRules = DEFAULT_RETRY_RULES,
        clock: Callable[[], float] = time.time,
        timer: Timer = asyncio.timeout,
        reported: Callable[[str, OutgoingStatus], None] = not_traced,
    ) -> None:
        """`clock` and `timer` are for calls to forges.

        Calls to the broker use the event loop's clock. `reported` is called with the source and each status that its
        forge shows.
        """
        self._reported = reported
        self._store = store
        self._remotes = remotes
        self._broker = broker
        self._topology = topology
        self._metrics = metrics
        self._rng = rng
        self._rules = rules
        self._clock = clock
        self._timer = timer
        self._finishing = asyncio.Event()
        self.is_leader = False
        """Whether this process is the leader and sends statuses."""

    def finish(self) -> None:
        """Begin no more calls; `run` returns once those under way have ended."""
        self._finishing.set()

    async def run(self) -> None:
        """Send statuses until finished or cancelled.

        When cancelled, a call under way may or may not have reached its forge.
        """
        failures = 0
        while not self._finishing.is_set():
            try:
                async with self._store.lead():
                    self.is_leader = True
                    await self._lead()
                    failures = 0
            except* StoreUnavailable as group:
                log.warning(LogEvent.STATUSES_PAUSED, detail=str(group.exceptions[0]))
            finally:
                self.is_leader = False
            if self._finishing.is_set():
                return
            await asyncio.sleep(
                backoff_seconds(
                    failures, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=LAST_RETRY_SECONDS
                )
            )
            failures = min(failures + 1, 8)

    async def _lead(self) -> None:
        orphans = await self._store.take_over(self._clock(), self._rules.horizon)
        if orphans:
            log.info(LogEvent.STATUSES_TAKEN_OVER, count=orphans)
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(self._dead_letters().run(), name="dead letters of statuses"),
                tasks.create_task(self._every(PURGE_SECONDS, self._forget), name="old statuses"),
                tasks.create_task(self._every(COUNT_SECONDS, self._count), name="count of statuses"),
            ]
            reporting = []
            for name, remote in self._remotes.items():
                remote.limits = await self._store.limits(name)
                source = SourceReporter(
                    name=name,
                    remote=remote,
                    store=self._store,
                    metrics=self._metrics,
                    rng=self._rng,
                    rules=self._rules,
                    clock=self._clock,
                    timer=self._timer,
                    finishing=self._finishing,
                    reported=self._reported,
                )
                reporting.append(tasks.create_task(source.run(), name=f"statuses of {name}"))
            await asyncio.wait(reporting)
            for task in beside:
                task.cancel()

    def _dead_letters(self) -> Forwarder[StatusDeadLetter]:
        return Forwarder(
            _DeadLetters(store=self._store),
            noun="dead letter",
            broker=self._broker,
            topology=self._topology,
            rng=self._rng,
            poll_seconds=POLL_SECONDS,
        )

    async def _every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        await periodic(
            work,
            every_seconds=seconds,
            rng=self._rng,
            log=log,
            failed=LogEvent.STATUSES_PAUSED,
            first_after="nothing",
        )

    async def _count(self) -> None:
        self._metrics.statuses_pending(await self._store.pending())

    async def _forget(self) -> None:
        await self._store.purge(self._clock() - SETTLED_DAYS * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeadLetters:
    """A Backlog of statuses that no forge will take.

    Each stays stored until the broker has it.
    """

    store: StatusStore

    def lead(self) -> AbstractAsyncContextManager[asyncio.Event]:
        # This process is the leader already.
        return self.store.changes()

    async def next_group(self, limit: int) -> Sequence[StatusDeadLetter]:
        return await self.store.dead_letters(limit)

    def message_of(self, row: StatusDeadLetter) -> Message:
        return Message(
            exchange=STATUSES.dlx,
            routing_key=STATUSES.routing_key,
            body=row.body,
            type=STATUSES.routing_key,
            correlation_id=row.request_id,
            headers=dict(row.headers),
        )

    def answered(self, group: Sequence[StatusDeadLetter], outcomes: Sequence[Published]) -> Sequence[int]:
        return [row.row_id for row, outcome in zip(group, outcomes, strict=True) if outcome.confirmed]

    async def mark(self, row_ids: Sequence[int]) -> None:
        await self.store.published(row_ids)

    async def ended(
        self,
        group: Sequence[StatusDeadLetter],  # noqa: ARG002  Backlog's
        failed: Sequence[tuple[StatusDeadLetter, Published]],
    ) -> None:
        if failed:
            self.interrupted(reason_of(failed[0][1]))

    def interrupted(self, detail: str) -> None:
        log.warning(LogEvent.STATUS_DEAD_LETTERS_PAUSED, detail=detail)

    def resumed(self, paused_seconds: float) -> None:
        log.info(LogEvent.STATUS_DEAD_LETTERS_RESUMED, paused_seconds=paused_seconds)
