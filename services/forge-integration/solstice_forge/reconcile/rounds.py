"""Comparing sources with their forges: one source at a time is somebody's, by command and by the clock."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_forge.decisions.sources import Source
from solstice_forge.inbox import KeptInbox
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.reconcile.calls import Asking, Sleep, Stopped
from solstice_forge.reconcile.compare_deliveries import HOOKS, Deliveries
from solstice_forge.reconcile.compare_heads import Comparison, learn
from solstice_forge.reconcile.missed_heads import named_repositories
from solstice_forge.reconcile.report import Findings, Report, Trouble, sentence
from solstice_forge.remote.http import Remote

log = structlog.get_logger("solstice_forge.reconcile.rounds")

KEPT_SECONDS: Final = 3 * 86_400.0
"""So long GitHub keeps its deliveries."""
PATIENCE_SECONDS: Final = 900.0
"""So long a forge's limits are waited for in one comparison."""
FIRST_SHARE: Final = (0.05, 0.15)
"""After which part of an interval the first comparison begins: a start has other things to do, but after an hour away it
should not wait for long."""
JITTER: Final = 0.1
NOT_NOW: Final = "it is being compared by another process now: try again in a moment"


def _silent(_words: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Compares sources with their forges. Any number of processes may: each source is one's at a time."""

    inbox: KeptInbox
    sources: Mapping[str, Source]
    remotes: Mapping[str, Remote]
    """The forge of a source, by the source's name; none for a source without a URL or a token."""
    metrics: Metrics
    rng: random.Random
    clock: Callable[[], float] = time.time
    sleep: Sleep = asyncio.sleep
    tell: Callable[[str], None] = _silent
    """Told what goes on, in words for people."""
    _told: dict[str, frozenset[Trouble]] = field(default_factory=dict)
    """The troubles of each source that were logged last."""

    async def compare(
        self,
        name: str,
        *,
        repository: str | None = None,
        since_seconds: float | None = None,
        dry_run: bool = False,
        ended_before: float | None = None,
    ) -> Report | None:
        """Compare one source; None when it is somebody else's now, or was compared at `ended_before` or later.

        `repository`: only this one. `since_seconds`: look at all that forges tell of so long, also what was looked at before.
        Raises StoreUnavailable.
        """
        source, findings = self.sources[name], Findings()
        asking = Asking(
            remote=self.remotes[name],
            tables=self.inbox.reconciling,
            clock=self.clock,
            sleep=self.sleep,
            rng=self.rng,
            tell=self.tell,
            patience_seconds=PATIENCE_SECONDS,
            dry_run=dry_run,
        )
        if not await asking.claim(ended_before):
            return None
        began = self.clock()
        try:
            await learn(self.inbox, self.sources, began)
            repositories = [repository] if repository else await self._repositories(source)
            dialect = HOOKS.get(source.forge.SOURCE)
            if dialect is None:
                comparison = Comparison(
                    source=source, sources=self.sources, inbox=self.inbox, asking=asking, findings=findings
                )
                await comparison.compare(repositories, [repository] if repository else [])
            else:
                deliveries = Deliveries(
                    source=source,
                    dialect=dialect,
                    asking=asking,
                    findings=findings,
                    since=began - (since_seconds or KEPT_SECONDS),
                    everything=since_seconds is not None,
                )
                await deliveries.compare(repositories)
        except Stopped as stopped:
            findings.troubles.append(Trouble(place=name, detail=str(stopped)))
        report = findings.report(name, dry_run=dry_run)
        if not dry_run:
            ended = self.clock()
            await self.inbox.reconciling.end_round(name, asking.holder, now=ended, report=report.encoded())
            self._record(report, ended - began)
        return report

    async def run(self, interval_seconds: float) -> None:
        """Compare every source once in an interval, until cancelled."""
        await self.sleep(interval_seconds * self.rng.uniform(*FIRST_SHARE))
        while True:
            for name in self.remotes:
                await self._compare_in_turn(name, interval_seconds)
            await self.sleep(interval_seconds * self.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    async def _compare_in_turn(self, name: str, interval_seconds: float) -> None:
        try:
            # Another replica may have done it: in a whole interval, once.
            await self.compare(name, ended_before=self.clock() - interval_seconds * (1.0 - 2 * JITTER))
        except StoreUnavailable as error:
            log.warning(LogEvent.RECONCILE_HELD, detail=str(error))
        except Exception:
            # A mistake of ours about one source must stop neither the others nor the service.
            log.exception(LogEvent.RECONCILE_BROKE, source=name)

    async def _repositories(self, source: Source) -> list[str]:
        known = await self.inbox.reconciling.repositories(source.name)
        repositories = sorted({*known, *named_repositories(source.rules)})
        # Where a limit always ends it early, the last ones shall have their turn as well.
        self.rng.shuffle(repositories)
        return repositories

    def _record(self, report: Report, seconds: float) -> None:
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
            if trouble not in self._told.get(report.source, ()):
                log.warning(
                    LogEvent.RECONCILE_TROUBLED,
                    source=report.source,
                    place=trouble.place,
                    detail=trouble.detail,
                )
        self._told[report.source] = troubles
        log.info(
            LogEvent.RECONCILE_ENDED,
            source=report.source,
            detail=sentence(report),
            seconds=round(seconds, 3),
        )
