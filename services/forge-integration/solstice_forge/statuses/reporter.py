"""The leader sends stored statuses to the forges, each context in order.

Each forge has its own pace.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from solstice_common.broker.protocol import Broker, Message
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.runtime.pausing import Timer, pause
from solstice_common.topology import STATUSES, Topology
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import Remote
from solstice_forge.statuses.call_endings import DEFAULT_RETRY_RULES, RetryRules
from solstice_forge.statuses.protocol import SETTLED_DAYS, StatusStore
from solstice_forge.statuses.source_reporter import LOOK_AGAIN_SECONDS, SourceReporter

log = structlog.get_logger("solstice_forge.statuses")

DEAD_LETTERS_AT_ONCE: Final = 50
PURGE_SECONDS: Final = 3600.0
COUNT_SECONDS: Final = 15.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0


class StatusReporter:
    """Sends the statuses of all sources from the store."""

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
    ) -> None:
        """`clock` and `timer` are for calls to forges.

        What concerns the broker uses the event loop's clock.
        """
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
                log.warning(LogEvent.STATUSES_HELD, count=0, detail=str(group.exceptions[0]))
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
                tasks.create_task(self._publish_dead_letters(), name="dead letters of statuses"),
                tasks.create_task(self._forget(), name="old statuses"),
                tasks.create_task(self._count(), name="count of statuses"),
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
                )
                reporting.append(tasks.create_task(source.run(), name=f"statuses of {name}"))
            await asyncio.wait(reporting)
            for task in beside:
                task.cancel()

    async def _publish_dead_letters(self) -> None:
        """Publish undeliverable statuses as dead letters; each stays stored until the broker has it."""
        failures = 0
        async with self._store.changes() as changed:
            while True:
                changed.clear()
                dead_letters = await self._store.dead_letters(DEAD_LETTERS_AT_ONCE)
                if not dead_letters:
                    await pause(LOOK_AGAIN_SECONDS, unless=changed)
                    continue
                messages = [
                    Message(
                        exchange=STATUSES.dlx,
                        routing_key=STATUSES.routing_key,
                        body=dead_letter.body,
                        type=STATUSES.routing_key,
                        correlation_id=dead_letter.request_id,
                        headers=dict(dead_letter.headers),
                    )
                    for dead_letter in dead_letters
                ]
                with contextlib.suppress(BrokerUnavailable):
                    await self._broker.declare(self._topology)
                outcomes = await self._broker.publish(messages)
                there = [
                    dead_letter.row_id
                    for dead_letter, out in zip(dead_letters, outcomes, strict=True)
                    if out.confirmed
                ]
                await self._store.published(there)
                failures = 0 if there else failures + 1
                if not there:
                    await asyncio.sleep(
                        backoff_seconds(
                            failures,
                            rng=self._rng,
                            base_seconds=FIRST_RETRY_SECONDS,
                            cap_seconds=LAST_RETRY_SECONDS,
                        )
                    )

    async def _count(self) -> None:
        while True:
            self._metrics.statuses_pending(await self._store.pending())
            await asyncio.sleep(COUNT_SECONDS)

    async def _forget(self) -> None:
        while True:
            await self._store.purge(self._clock() - SETTLED_DAYS * 86400)
            await asyncio.sleep(PURGE_SECONDS)
