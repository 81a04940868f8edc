"""Asks the forges for what answered deliveries lack, and makes requests of complete ones."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.runtime.periodic import on_notification
from solstice_forge.decisions.plan import PlanOptions, plan
from solstice_forge.decisions.requests import PlannedCancel, PlannedRun
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.forges.events import Ignored, IgnoreReason, Incomplete, Malformed, decode_lacking
from solstice_forge.inbox.protocol import Lookup, Lookups
from solstice_forge.log_events import LogEvent
from solstice_forge.lookups.forge_questions import (
    ForgeQuestion,
    ignored,
    next_question,
    refused,
    too_late,
    without_access,
)
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import CallDone, CallPostponed, CallRefused

log = structlog.get_logger(__name__)

GROUP: Final = 8
LEASE_SECONDS: Final = 90.0
"""How long no other process takes a taken lookup.

It is enough for a group with two calls each, four at a time, all of them slow. It is shorter than an approval is valid,
so that an approval outlives a restart.
"""
POLL_SECONDS: Final = 30.0
"""The longest wait between two polls, for lookups of a process that died."""
MOST_MISTAKES: Final = 5
"""How often a lookup that raises an unexpected error is tried, once per lease."""
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 300.0
STORE_RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupService:
    """A service that completes deliveries until cancelled.

    Any number of processes may do so: each takes others.
    """

    inbox: Lookups
    sources: Mapping[str, WebhookSource]
    remotes: Mapping[str, Remote]
    """The forge of a source, by the source's name; none for a source without a URL or a token."""
    metrics: Metrics
    rng: random.Random
    clock: Callable[[], float] = time.time

    async def run(self) -> None:
        await on_notification(
            self.ask_due,
            notified=self.inbox.lookup_added,
            retry_seconds=STORE_RETRY_SECONDS,
            rng=self.rng,
            log=log,
            failed=LogEvent.LOOKUPS_PAUSED,
        )

    async def ask_due(self) -> float:
        """Ask for all due lookups; return the seconds until the next one."""
        while True:
            now = self.clock()
            claimed = await self.inbox.take_lookups(now, until=now + LEASE_SECONDS, limit=GROUP)
            if not claimed:
                break
            # No task group: before Python 3.11.4 one that failed leaves its task half cancelled, and the next pause ends it.
            for failed in await asyncio.gather(*map(self._one, claimed), return_exceptions=True):
                if failed is not None:
                    raise failed
        next_at = await self.inbox.next_lookup_at()
        return POLL_SECONDS if next_at is None else min(max(next_at - now, 0.0), POLL_SECONDS)

    async def _one(self, lookup: Lookup) -> None:
        try:
            await self._handle(lookup)
        except StoreUnavailable:
            raise
        except Exception as error:
            # A delivery that causes an unexpected error must neither end the service nor come back forever.
            log.exception(LogEvent.LOOKUP_CRASHED, source=lookup.source_name, delivery_id=lookup.delivery_id)
            if lookup.attempts >= MOST_MISTAKES:
                words = f"an internal error, now in the log: {type(error).__name__}"
                await self._decline(lookup, Ignored(reason=IgnoreReason.UNUSABLE, detail=words))

    async def _handle(self, lookup: Lookup) -> None:
        try:
            event = decode_lacking(lookup.event)
        except ValueError:
            await self._decline(
                lookup,
                Ignored(
                    reason=IgnoreReason.UNUSABLE, detail="it was stored by another version of this service"
                ),
            )
            return
        outcome = await self._ask_forge(lookup, event)
        match outcome:
            case CallPostponed():
                await self._postpone(lookup, event, outcome)
            case Ignored():
                await self._decline(lookup, outcome)
            case PlannedRun() | PlannedCancel():
                await self.inbox.lookup_answered(lookup.row_id, outcome.body)
                self._count(lookup, "answered")
                log.info(
                    LogEvent.LOOKUP_ANSWERED,
                    source=lookup.source_name,
                    delivery_id=lookup.delivery_id,
                    request_id=outcome.id,
                )

    async def _ask_forge(
        self, lookup: Lookup, event: Incomplete
    ) -> PlannedRun | PlannedCancel | Ignored | CallPostponed:
        """Ask question after question, until nothing is lacking or the forge does not answer."""
        source, remote = self.sources.get(lookup.source_name), self.remotes.get(lookup.source_name)
        if source is None or remote is None:
            return without_access(event, lookup.source_name)
        state: Incomplete | Ignored = event
        while not isinstance(state, Ignored):
            # Also before the first question: no process may have run to ask it for a long time.
            late = too_late(state, self.clock() - lookup.received_at, None)
            question: ForgeQuestion[Any] | Incomplete | Ignored = late or next_question(state, remote.dialect)
            if not isinstance(question, ForgeQuestion):
                return question if isinstance(question, Ignored) else self._planned(lookup, question, source)
            match await remote.ask(question.call):
                case CallDone(value=value):
                    state = question.answered(value)
                case CallRefused() as never:
                    return refused(state, never)
                case CallPostponed() as later:
                    return later
        return state

    def _planned(
        self, lookup: Lookup, event: Incomplete, source: WebhookSource
    ) -> PlannedRun | PlannedCancel | Ignored:
        options = PlanOptions(
            delivery_id=lookup.delivery_id,
            received_at=lookup.received_at,
            traceparent=lookup.traceparent,
            key=lookup.content_key,
        )
        planned = plan(event, source, b"", options)
        if planned is None or isinstance(planned, Malformed):
            detail = "the forge's answers leave it incomplete" if planned is None else planned.detail
            return ignored(event, IgnoreReason.UNUSABLE, detail)
        return planned

    async def _postpone(self, lookup: Lookup, event: Incomplete, later: CallPostponed) -> None:
        now = self.clock()
        wait = backoff_seconds(
            lookup.attempts - 1,
            rng=self.rng,
            base_seconds=FIRST_RETRY_SECONDS,
            cap_seconds=LAST_RETRY_SECONDS,
        )
        at = max(later.at, now + wait)
        if late := too_late(event, at - lookup.received_at, later):
            await self._decline(lookup, late)
            return
        await self.inbox.lookup_postponed(lookup.row_id, at, later.why)
        self._count(lookup, "postponed")
        log.info(
            LogEvent.LOOKUP_POSTPONED,
            source=lookup.source_name,
            delivery_id=lookup.delivery_id,
            detail=later.why,
            seconds=round(at - now, 3),
        )

    async def _decline(self, lookup: Lookup, why: Ignored) -> None:
        await self.inbox.declined(lookup.row_id, why.reason.value, why.detail)
        self._count(lookup, "declined")
        log.info(
            LogEvent.LOOKUP_DECLINED,
            source=lookup.source_name,
            delivery_id=lookup.delivery_id,
            reason=why.reason.value,
            detail=why.detail,
        )

    def _count(self, lookup: Lookup, outcome: str) -> None:
        # Metric labels are closed lists: a source that is no longer configured is not in them.
        self.metrics.lookup(lookup.source_name if lookup.source_name in self.sources else "unknown", outcome)
