"""Compares sources with their forges, by command and periodically, one process per source."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from solstice_common.runtime.periodic import JITTER, Sleep, periodic
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.inbox import InboxStore
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.reconcile.calls import ReconcileSession, ReconcileStopped
from solstice_forge.reconcile.compare_deliveries import HOOKS, DeliveryComparison
from solstice_forge.reconcile.compare_heads import GoneRefs, HeadComparison, learn
from solstice_forge.reconcile.missed_heads import named_repositories
from solstice_forge.reconcile.report import ReconcileFindings, ReconcileProblem, ReconcileReport, sentence
from solstice_forge.remote.http import Remote

log = structlog.get_logger(__name__)

FORGE_RECORD_SECONDS: Final = 3 * 86_400.0
"""How long GitHub stores its deliveries."""
LIMIT_WAIT_SECONDS: Final = 900.0
"""How long one comparison waits for a forge's limits."""
FIRST_SHARE: Final = (0.05, 0.15)
"""After which part of an interval the first comparison begins.

A start has other work to do, but a service that was down for an hour should not wait long.
"""
NOT_NOW: Final = "it is being compared by another process now: try again in a moment"


def _silent(_words: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """A loop that compares sources with their forges.

    Any number of processes may do so: one process at a time compares a source.
    """

    inbox: InboxStore
    sources: Mapping[str, WebhookSource]
    remotes: Mapping[str, Remote]
    """The forge of a source, by the source's name; none for a source without a URL or a token."""
    metrics: Metrics
    rng: random.Random
    clock: Callable[[], float] = time.time
    sleep: Sleep = asyncio.sleep
    report_progress: Callable[[str], None] = _silent
    """Called with what happens, in words for people."""
    _last_progress: dict[str, frozenset[ReconcileProblem]] = field(default_factory=dict)
    """The problems of each source that were logged last."""
    _gone: dict[str, GoneRefs] = field(default_factory=dict)
    """Refs that each source's forge did not have in the last comparison of this process."""

    async def compare(
        self,
        name: str,
        *,
        repository: str | None = None,
        since_seconds: float | None = None,
        dry_run: bool = False,
        ended_before: float | None = None,
    ) -> ReconcileReport | None:
        """Compare one source; None when another process does, or did recently.

        Recently means that the last comparison ended at `ended_before` or later. `repository`: compare only this one.
        `since_seconds`: look at all that the forge reports of this period, also at what was looked at before. Raises
        StoreUnavailable.
        """
        source, findings = self.sources[name], ReconcileFindings()
        session = ReconcileSession(
            remote=self.remotes[name],
            tables=self.inbox.reconcile_state,
            clock=self.clock,
            sleep=self.sleep,
            rng=self.rng,
            report_progress=self.report_progress,
            limit_wait_seconds=LIMIT_WAIT_SECONDS,
            dry_run=dry_run,
        )
        if not await session.claim(ended_before):
            return None
        began = self.clock()
        try:
            await learn(self.inbox, self.sources, began)
            repositories = [repository] if repository else await self._repositories(source)
            dialect = HOOKS.get(source.forge.SOURCE)
            if dialect is None:
                comparison = HeadComparison(
                    source=source,
                    sources=self.sources,
                    inbox=self.inbox,
                    session=session,
                    findings=findings,
                    gone=self._gone.setdefault(name, {}),
                )
                await comparison.compare(repositories, [repository] if repository else [])
            else:
                deliveries = DeliveryComparison(
                    source=source,
                    dialect=dialect,
                    session=session,
                    findings=findings,
                    since=began - (since_seconds or FORGE_RECORD_SECONDS),
                    everything=since_seconds is not None,
                )
                await deliveries.compare(repositories)
        except ReconcileStopped as stopped:
            findings.troubles.append(ReconcileProblem(place=name, detail=str(stopped)))
        report = findings.report(name, dry_run=dry_run)
        if not dry_run:
            ended = self.clock()
            await self.inbox.reconcile_state.end_round(
                name, session.holder, now=ended, report=report.encoded()
            )
            self._record(report, ended - began)
        return report

    async def run(self, interval_seconds: float) -> None:
        """Compare every source about once in an interval, until cancelled."""
        await self.sleep(interval_seconds * self.rng.uniform(*FIRST_SHARE))
        async with asyncio.TaskGroup() as sources:
            for name in self.remotes:
                compared = periodic(
                    partial(self._compare_again, name, interval_seconds),
                    every_seconds=interval_seconds,
                    rng=self.rng,
                    log=log.bind(source=name),
                    failed=LogEvent.RECONCILE_PAUSED,
                    first_after="nothing",
                    sleep=self.sleep,
                )
                sources.create_task(compared, name=f"forge-reconcile {name}")

    async def _compare_again(self, name: str, interval_seconds: float) -> None:
        # Another replica may have done it: once per interval is enough.
        await self.compare(name, ended_before=self.clock() - interval_seconds * (1.0 - 2 * JITTER))

    async def _repositories(self, source: WebhookSource) -> list[str]:
        known = await self.inbox.reconcile_state.repositories(source.name)
        repositories = sorted({*known, *named_repositories(source.rules)})
        # If a limit always ends it early, the last ones must also be compared at some time.
        self.rng.shuffle(repositories)
        return repositories

    def _record(self, report: ReconcileReport, seconds: float) -> None:
        counts = {
            "sent": len(report.sent),
            "given_up": len(report.given_up),
            "baseline": report.baseline,
            "trouble": len(report.troubles),
            **{
                outcome: sum(each.decision == outcome for each in report.made)
                for outcome in ("accepted", "duplicate", "ignored")
            },
        }
        for outcome, count in counts.items():
            if count:
                self.metrics.reconciled(report.source, outcome, count)
        troubles = frozenset(report.troubles)
        for trouble in report.troubles:
            if trouble not in self._last_progress.get(report.source, ()):
                log.warning(
                    LogEvent.COMPARISON_FAILED,
                    source=report.source,
                    place=trouble.place,
                    detail=trouble.detail,
                )
        self._last_progress[report.source] = troubles
        log.info(
            LogEvent.RECONCILE_ENDED,
            source=report.source,
            detail=sentence(report),
            seconds=round(seconds, 3),
        )
