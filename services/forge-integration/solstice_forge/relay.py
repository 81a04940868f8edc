"""From the inbox to the broker: in the order kept, in groups, with confirms; nothing is forgotten, nothing hurried."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from enum import Enum
from typing import Final

import structlog
from solstice_common.backoff import backoff_seconds
from solstice_common.broker.protocol import Broker, Published
from solstice_common.errors import BrokerError, BrokerUnavailable, StoreUnavailable
from solstice_common.topology import Route, Topology

from solstice_forge.inbox.protocol import Inbox, Pending
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.publication import publication

log = structlog.get_logger("solstice_forge.relay")

GROUP: Final = 256
"""More in flight gains nothing (two hundred are enough to keep a broker busy) and would repeat more after a crash."""
LOOK_AGAIN_SECONDS: Final = 30.0
"""In case a wake-up went astray."""
CONNECT_SECONDS: Final = 1.0
"""How long one wait for the connection lasts, and so how soon `finish` is noticed while the broker is down."""
LEAST_RETRY_SECONDS: Final = 0.01
"""Jitter may draw nothing at all; a broker that refuses at once is not to be asked in a tight loop."""
FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 15.0


def split(
    group: Sequence[Pending], outcomes: Sequence[Published]
) -> tuple[list[Pending], list[tuple[Pending, Published]]]:
    """Which of the group are with the broker, and which are not, each in the order kept."""
    pairs = list(zip(group, outcomes, strict=True))
    return (
        [one for one, outcome in pairs if outcome.confirmed],
        [(one, outcome) for one, outcome in pairs if not outcome.confirmed],
    )


class Step(Enum):
    """What one look into the inbox came to."""

    IDLE = "nothing is pending"
    PUBLISHED = "a group is with the broker"
    FAILED = "some of a group are not"


class Relay:
    """One relay. `run` publishes until cancelled, or, once `finish` was called, until nothing more can be done."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        broker: Broker,
        route: Route,
        topology: Topology,
        metrics: Metrics,
        rng: random.Random,
    ) -> None:
        self._inbox = inbox
        self._broker = broker
        self._route = route
        self._topology = topology
        self._metrics = metrics
        self._rng = rng
        self._wake = asyncio.Event()
        self._finishing = False
        self._declared = False
        self._failures = 0
        self._held_since: float | None = None
        self._unmarked: list[int] = []
        self.problem: str | None = None
        """Why nothing can be published now, for `/readyz`; None while all is well."""

    def finish(self) -> None:
        """Publish what is pending and can be published, then let `run` return."""
        self._finishing = True
        self._wake.set()

    async def run(self) -> None:
        async with self._inbox.relaying(), self._inbox.changes() as self._wake:
            while True:
                self._wake.clear()
                try:
                    step = await self._step()
                except (BrokerError, StoreUnavailable) as error:
                    self._hold(error)
                    step = Step.FAILED
                if self._finishing and step is not Step.PUBLISHED:
                    return
                if step is Step.IDLE:
                    await self._woken(LOOK_AGAIN_SECONDS)
                elif step is Step.FAILED:
                    await self._pause(self._retry_seconds())

    async def _step(self) -> Step:
        # Confirmed, but the inbox could not be told so: first of all, or they would be published again.
        await self._mark_published()
        group = await self._inbox.pending(GROUP)
        if group or not self._declared:
            # Also with nothing to publish: what is wrong with the broker should be known before the first webhook.
            await self._prepare_broker()
        return await self._publish(group) if group else Step.IDLE

    async def _mark_published(self) -> None:
        if self._unmarked:
            await self._inbox.published(self._unmarked)
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
            held_seconds = round(time.monotonic() - self._held_since, 3)
            log.info(LogEvent.RELAY_RESUMED, held_seconds=held_seconds)
            # The world is well again: the next failure starts from a short wait.
            self._failures = 0
        self._held_since = self.problem = None

    async def _publish(self, group: Sequence[Pending]) -> Step:
        outcomes = await self._broker.publish(
            [publication(one.request, self._route, attempt=one.attempts + 1) for one in group]
        )
        for outcome in outcomes:
            self._metrics.published(outcome.status)
        confirmed, failed = split(group, outcomes)
        if confirmed:
            self._unmarked = [one.row_id for one in confirmed]
            log.info(
                LogEvent.RELAY_PUBLISHED,
                count=len(confirmed),
                request_ids=[one.request_id for one in confirmed],
            )
            await self._mark_published()
        if failed:
            await self._not_published(failed)
            return Step.FAILED
        self._failures = 0
        return Step.PUBLISHED

    async def _not_published(self, failed: Sequence[tuple[Pending, Published]]) -> None:
        """They stay pending: what cannot be routed or taken now may be later."""
        first = failed[0][1]
        detail = f"{first.status.value}: {first.detail}" if first.detail else first.status.value
        # Whatever was missing may have to be made anew: a broker that lost its queues, say.
        self._declared = False
        self._failures += 1
        self.problem = f"the broker did not take a request ({detail})"
        log.warning(
            LogEvent.RELAY_NOT_PUBLISHED,
            count=len(failed),
            status=first.status.value,
            detail=first.detail,
            request_ids=[one.request_id for one, _ in failed],
        )
        await self._inbox.not_published([one.row_id for one, _ in failed], detail)

    def _hold(self, error: BrokerError | StoreUnavailable) -> None:
        """Say once that nothing goes out."""
        self.problem = str(error)
        self._declared = False
        # Waiting for a connection took its time already: look for it often, so that its return is soon noticed.
        self._failures = 1 if isinstance(error, BrokerUnavailable) else self._failures + 1
        if self._held_since is None:
            self._held_since = time.monotonic()
            log.warning(LogEvent.RELAY_HELD, detail=str(error))

    def _retry_seconds(self) -> float:
        before = max(self._failures - 1, 0)
        drawn = backoff_seconds(
            before, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=LAST_RETRY_SECONDS
        )
        return max(LEAST_RETRY_SECONDS, drawn)

    async def _pause(self, seconds: float) -> None:
        """Wait; new deliveries do not cut it short, `finish` does."""
        deadline = time.monotonic() + seconds
        while not self._finishing and (left := deadline - time.monotonic()) > 0:
            self._wake.clear()
            await self._woken(left)

    async def _woken(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
