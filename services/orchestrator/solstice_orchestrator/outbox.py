"""From the store to the broker: what happened is told in order, in groups, with confirms, and never forgotten."""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import structlog
from solstice_common.backoff import backoff_seconds
from solstice_common.broker.protocol import Broker, HeaderValue, Message, Published
from solstice_common.errors import BrokerError, BrokerUnavailable, StoreUnavailable
from solstice_common.messages import JobRequestV1, JobStatusV1
from solstice_common.topology import STATUSES, Route, Topology

from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import JobStore, OutboxKind, OutboxRow

log = structlog.get_logger("solstice_orchestrator.outbox")

GROUP: Final = 256
LOOK_AGAIN_SECONDS: Final = 5.0
"""In case a wake-up went astray, or the orchestrator that published until now is gone."""
CONNECT_SECONDS: Final = 1.0
FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 15.0


def message_of(row: OutboxRow, jobs: Route) -> Message:
    """A status for the statuses' exchange; a dead letter for that of the jobs, with its history in the headers."""
    if row.kind is OutboxKind.STATUS:
        route, exchange, version = STATUSES, STATUSES.exchange, JobStatusV1.VERSION
    else:
        route, exchange, version = jobs, jobs.dlx, JobRequestV1.VERSION
    headers: Mapping[str, HeaderValue] = dict(row.headers)
    return Message(
        exchange=exchange,
        routing_key=route.routing_key,
        body=row.body,
        type=version,
        correlation_id=row.request_id,
        headers=headers,
    )


def told(rows: Sequence[OutboxRow], outcomes: Sequence[Published]) -> list[int]:
    """The rows that are done with: confirmed, and nothing of the same request before them is still to be told.

    What was confirmed behind a gap is told again after the gap, so that the last word of a run is its newest.
    """
    done: list[int] = []
    behind_a_gap: set[str] = set()
    for row, outcome in zip(rows, outcomes, strict=True):
        if not outcome.confirmed:
            behind_a_gap.add(row.request_id)
        elif row.request_id not in behind_a_gap:
            done.append(row.row_id)
    return done


class _Step(Enum):
    IDLE = "nothing is to be told"
    TOLD = "a group is with the broker"
    FAILED = "some of a group are not"


class Outbox:
    """One publisher. `run` publishes until cancelled, or, once `finish` was called, until nothing more can be done."""

    def __init__(
        self,
        *,
        store: JobStore,
        broker: Broker,
        jobs: Route,
        topology: Topology,
        metrics: Metrics,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._broker = broker
        self._jobs = jobs
        self._topology = topology
        self._metrics = metrics
        self._rng = rng
        self._wake = asyncio.Event()
        self._finishing = False
        self._declared = False
        self._failures = 0
        self._held_since: float | None = None
        self._unmarked: list[int] = []

    def finish(self) -> None:
        """Publish what waits and can be published, then let `run` return."""
        self._finishing = True
        self._wake.set()

    async def run(self) -> None:
        async with self._store.changes() as self._wake:
            while True:
                self._wake.clear()
                try:
                    step = await self._step()
                except (BrokerError, StoreUnavailable) as error:
                    self._hold(error)
                    step = _Step.FAILED
                if self._finishing and step is not _Step.TOLD:
                    return
                if step is _Step.IDLE:
                    await self._woken(LOOK_AGAIN_SECONDS)
                elif step is _Step.FAILED:
                    await self._pause(self._retry_seconds())

    async def _step(self) -> _Step:
        # Confirmed, but the store could not be told so: first of all, or they would be told again.
        await self._mark()
        rows = await self._store.outbox(GROUP)
        if not rows:
            return _Step.IDLE
        await self._prepare_broker()
        outcomes = await self._broker.publish([message_of(row, self._jobs) for row in rows])
        for outcome in outcomes:
            self._metrics.outbox_published(outcome.status)
        self._unmarked = told(rows, outcomes)
        await self._mark()
        failed = [outcome for outcome in outcomes if not outcome.confirmed]
        if failed:
            self._declared = False
            self._failures += 1
            log.warning(
                LogEvent.OUTBOX_NOT_PUBLISHED,
                count=len(failed),
                status=failed[0].status.value,
                detail=failed[0].detail,
            )
            return _Step.FAILED
        self._failures = 0
        log.debug(
            LogEvent.OUTBOX_PUBLISHED,
            count=len(rows),
            dead_letters=sum(row.kind is OutboxKind.DEAD_LETTER for row in rows),
        )
        return _Step.TOLD

    async def _mark(self) -> None:
        if self._unmarked:
            await self._store.published(self._unmarked)
            self._unmarked = []

    async def _prepare_broker(self) -> None:
        """A connection that takes publishes, and the topology on the broker; BrokerError when not."""
        await self._broker.ready(CONNECT_SECONDS)
        if blocked := self._broker.health.blocked:
            raise BrokerUnavailable(self._broker.url, f"it takes no publishes at the moment: {blocked}")
        if not self._declared:
            await self._broker.declare(self._topology)
            self._declared = True
        if self._held_since is not None:
            log.info(LogEvent.OUTBOX_RESUMED, held_seconds=round(time.monotonic() - self._held_since, 3))
            self._held_since, self._failures = None, 0

    def _hold(self, error: BrokerError | StoreUnavailable) -> None:
        """Say once that nothing goes out."""
        self._declared = False
        # Waiting for a connection took its time already: look for it often, so that its return is soon noticed.
        self._failures = 1 if isinstance(error, BrokerUnavailable) else self._failures + 1
        if self._held_since is None:
            self._held_since = time.monotonic()
            log.warning(LogEvent.OUTBOX_HELD, detail=str(error))

    def _retry_seconds(self) -> float:
        return backoff_seconds(
            max(self._failures - 1, 0),
            rng=self._rng,
            base_seconds=FIRST_RETRY_SECONDS,
            cap_seconds=LAST_RETRY_SECONDS,
        )

    async def _pause(self, seconds: float) -> None:
        """Wait; new statuses do not cut it short, `finish` does."""
        deadline = time.monotonic() + seconds
        while not self._finishing and (left := deadline - time.monotonic()) > 0:
            self._wake.clear()
            await self._woken(left)

    async def _woken(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
