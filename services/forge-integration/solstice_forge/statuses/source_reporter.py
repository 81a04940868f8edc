"""Sends statuses to one forge: each context in order, at the forge's own pace."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import httpx2
import structlog

from solstice_common.runtime.pausing import Timer, pause
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.remote.call_pacing import called
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import CallRefused, CheckCalls, CommitStatus, Result
from solstice_forge.statuses.call_endings import (
    MOST_CALLS,
    CallEnding,
    Reported,
    RetryLater,
    RetryRules,
    StatusNotSent,
    Undeliverable,
    ending,
)
from solstice_forge.statuses.protocol import OutgoingStatus, StatusStore
from solstice_forge.statuses.reportable_status import commit_status

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 30.0
"""The longest wait between two polls, in case a notification was lost."""
AWAY: Final = 3
"""After this many failed calls in a row the forge counts as unreachable, and a success as its return."""


def not_traced(_source_name: str, _outgoing: OutgoingStatus) -> None:
    """Take a reported status while nothing is traced."""


class SourceReporter:
    """The sender of the statuses of one source to its forge."""

    def __init__(
        self,
        *,
        name: str,
        remote: Remote,
        store: StatusStore,
        metrics: Metrics,
        rng: random.Random,
        rules: RetryRules,
        clock: Callable[[], float],
        timer: Timer,
        finishing: asyncio.Event,
        reported: Callable[[str, OutgoingStatus], None] = not_traced,
    ) -> None:
        """`reported` is called with the source and each status that its forge shows."""
        self._reported = reported
        self._finishing = finishing
        self._name = name
        self._remote = remote
        self._store = store
        self._metrics = metrics
        self._rng = rng
        self._rules = rules
        self._clock = clock
        self._timer = timer
        self._pace = remote.dialect.PACE
        self._calls_open = 0
        self._failures = 0
        """Failed calls in a row, for which the forge did not work."""
        self._checks = None if remote.access.app is None else remote.dialect.CHECKS
        """The calls for check runs; None once the App turned out to have no right to them."""

    async def run(self) -> None:
        """Send statuses until finishing; then return when the last call has ended."""
        async with self._store.changes() as changed, asyncio.TaskGroup() as calls:
            waker = calls.create_task(self._wake(changed), name=f"end of {self._name}")
            while not self._finishing.is_set():
                changed.clear()
                await pause(await self._begin_all(calls, changed), unless=changed, timer=self._timer)
            waker.cancel()

    async def _wake(self, changed: asyncio.Event) -> None:
        await self._finishing.wait()
        changed.set()

    async def _begin_all(self, calls: asyncio.TaskGroup, changed: asyncio.Event) -> float:
        """Begin as many calls as allowed; return for how many seconds to wait."""
        while self._calls_open < self._pace.at_once:
            now = self._clock()
            wait = self._remote.next_call_at() - now
            if wait <= 0:
                next_status = await self._store.take(
                    self._name, now, called(self._remote.limits, self._pace, now)
                )
                if isinstance(next_status, OutgoingStatus):
                    # Counted now, and not when the call goes out: other calls begin at the same time.
                    self._remote.count()
                    self._calls_open += 1
                    calls.create_task(self._send(next_status, changed), name=f"status {next_status.place}")
                    continue
                wait = POLL_SECONDS if next_status is None else next_status - now
            return min(max(wait, 0.0), POLL_SECONDS)
        return POLL_SECONDS

    async def _send(self, outgoing: OutgoingStatus, changed: asyncio.Event) -> None:
        try:
            end = await self._call_result(outgoing)
            await self._store.ended(
                outgoing, end, now=self._clock(), horizon=self._rules.horizon, limits=self._remote.limits
            )
            self._say(outgoing, end)
            if isinstance(end, Reported | Undeliverable):
                if self._failures >= AWAY:
                    await self._store.retry_now(self._name, self._clock())
                self._failures = 0
            elif isinstance(end, RetryLater) and end.failed:
                self._failures += 1
        finally:
            self._calls_open -= 1
            changed.set()

    async def _call_result(self, outgoing: OutgoingStatus) -> CallEnding:
        try:
            return await self._called(outgoing)
        except Exception as error:
            # An unexpected error of one status must not stop the others, now or at every new start.
            log.exception(LogEvent.STATUS_HANDLING_CRASHED, source=self._name, request_id=outgoing.request_id)
            return Undeliverable(reason="internal_error", detail=f"{type(error).__name__}: {error}")

    async def _called(self, outgoing: OutgoingStatus) -> CallEnding:
        if outgoing.calls >= MOST_CALLS and not outgoing.final:
            return StatusNotSent()
        status = commit_status(outgoing.repository, outgoing.body)
        return ending(
            await self._show(status, outgoing),
            failures=outgoing.failures,
            failing_since=outgoing.failing_since,
            now=self._clock(),
            rng=self._rng,
            rules=self._rules,
        )

    async def _show(self, status: CommitStatus, outgoing: OutgoingStatus) -> Result[int | None]:
        if self._checks is not None:
            shown = await self._show_check(self._checks, status, outgoing.check_id)
            if not (
                isinstance(shown, CallRefused) and self._checks.forbids_checks(shown.status, shown.detail)
            ):
                return shown
            self._checks = None
            log.warning(LogEvent.CHECKS_FORBIDDEN, source=self._name, detail=shown.detail)
            self._remote.count()
        return await self._remote.ask(self._remote.dialect.set_status(status), counted=True)

    async def _show_check(
        self, checks: CheckCalls, status: CommitStatus, check_id: int | None
    ) -> Result[int]:
        shown = await self._remote.ask(checks.set_check(status, check_id), counted=True)
        if (
            status.tests is not None
            and isinstance(shown, CallRefused)
            and shown.status == httpx2.codes.UNPROCESSABLE_CONTENT
        ):
            # What a job wrote must not keep its state from the forge: once more without it.
            status = replace(status, tests=None)
            self._remote.count()
            shown = await self._remote.ask(checks.set_check(status, check_id), counted=True)
        if check_id is None or not isinstance(shown, CallRefused) or shown.status != httpx2.codes.NOT_FOUND:
            return shown
        # The forge removes old check runs when there are very many.
        self._remote.count()
        return await self._remote.ask(checks.set_check(status, None), counted=True)

    def _say(self, outgoing: OutgoingStatus, end: CallEnding) -> None:
        fields = {"source": self._name, "request_id": outgoing.request_id, "repository": outgoing.repository}
        match end:
            case Reported():
                self._metrics.status_reported(self._name, max(0.0, self._clock() - outgoing.stored_at))
                self._reported(self._name, outgoing)
                log.info(LogEvent.STATUS_REPORTED, **fields, state=outgoing.state, place=outgoing.place)
            case StatusNotSent():
                self._metrics.status_call(self._name, "spared")
            case RetryLater(failed=failed, why=why, at=at):
                self._metrics.status_call(self._name, "failed" if failed else "limited")
                log.info(LogEvent.STATUS_DELAYED, **fields, detail=why, seconds=round(at - self._clock(), 1))
            case Undeliverable(reason=reason, detail=detail):
                self._metrics.status_call(self._name, "dead")
                log.warning(LogEvent.STATUS_UNDELIVERABLE, **fields, reason=reason, detail=detail)
