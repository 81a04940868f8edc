"""The loop that fires ticks sleeps until the next, and logs each outcome."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed
from solstice_orchestrator.git.heads import Branch
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.stages import schedule_ticks
from solstice_orchestrator.stages.schedule_ticks import ScheduleRunner
from solstice_orchestrator.store.schedule_store import ClaimedTicks, ScheduleStore, SettledTick, TickTask
from tests.schedules import COMMIT

WAIT_SECONDS = 60.0
TASK = TickTask(
    tick_id="tick",
    attempt=1,
    schedule_id="schedule",
    schedule="nightly",
    repo_url="https://forge.example/app.git",
    ref="refs/heads/main",
    tick_at=1_800_000_000.0,
    by_hand=False,
)


@pytest.fixture(autouse=True)
def fresh_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger without cached settings of earlier tests, so that logs can be captured."""
    monkeypatch.setattr(schedule_ticks, "log", structlog.get_logger())


class ScriptedScheduleStore:
    """A schedule store with scripted claims, which records its calls."""

    def __init__(self, *claims: ClaimedTicks | Exception, pause: float | None = None) -> None:
        self._claims = [*claims]
        self._pause = pause
        self.changed = asyncio.Event()
        self.polls = 0
        self.polled = asyncio.Event()
        self.calls: list[tuple[object, ...]] = []
        self.called = asyncio.Event()

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        yield self.changed

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        self.polls += 1
        self.polled.set()
        claim = self._claims.pop(0) if self._claims else ClaimedTicks()
        if isinstance(claim, Exception):
            raise claim
        return claim

    async def pause_seconds(self) -> float | None:
        return self._pause

    async def fired(self, task: TickTask, commit_sha: str) -> SettledTick | None:
        self._say("fired", commit_sha)
        return settled(TickState.FIRED, TickReason.ON_TIME, run_id="run", late_seconds=0.25)

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, retry: bool
    ) -> SettledTick | None:
        self._say("not fired", reason, retry)
        return settled(TickState.DUE if retry else TickState.FAILED, reason, detail=detail)

    async def release(self, task: TickTask) -> None:
        self._say("released", task.tick_id)

    def _say(self, *what: object) -> None:
        self.calls.append(what)
        self.called.set()


def settled(state: TickState, reason: TickReason, **fields: Any) -> SettledTick:
    return SettledTick(
        schedule_id="schedule",
        schedule="nightly",
        tick_at=TASK.tick_at,
        state=state,
        reason=reason,
        **fields,
    )


@asynccontextmanager
async def running(
    reported: ScriptedScheduleStore, head: str | Exception | None, metrics: Metrics
) -> AsyncIterator[None]:
    async def head_of(branch: Branch) -> str | None:
        if isinstance(head, Exception):
            raise head
        if head == "never":
            await asyncio.Event().wait()
        return head

    loop = ScheduleRunner(
        schedule_store=cast("ScheduleStore", reported),
        worker_id="worker-a",
        head_of=head_of,
        metrics=metrics,
        rng=random.Random(1),
    )
    task = asyncio.create_task(loop.run())
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def rendered(metrics: Metrics) -> str:
    return metrics.render({}, BrokerHealth(connected=True)).decode()


@pytest.mark.parametrize(
    ("head", "calls", "event"),
    [
        pytest.param(COMMIT, ("fired", COMMIT), "tick.fired", id="there"),
        pytest.param(None, ("not fired", TickReason.BRANCH_GONE, False), "tick.not_fired", id="gone"),
        pytest.param(
            CheckoutFailed(Reason.CHECKOUT_FAILED, "no route"),
            ("not fired", TickReason.FORGE_AWAY, True),
            "tick.delayed",
            id="away",
        ),
        pytest.param(
            CheckoutFailed(Reason.HOST_AWAY, "the rate limit is reached"),
            ("not fired", TickReason.FORGE_AWAY, True),
            "tick.delayed",
            id="limited",
        ),
        pytest.param(
            CheckoutFailed(Reason.COMMIT_NOT_FOUND, "not for us"),
            ("not fired", TickReason.UNREADABLE, False),
            "tick.not_fired",
            id="closed",
        ),
    ],
)
async def test_what_the_forge_says_decides(
    head: str | Exception | None, calls: Sequence[object], event: str
) -> None:
    reported, metrics = ScriptedScheduleStore(ClaimedTicks(tasks=[TASK])), Metrics()
    with capture_logs() as logs:
        async with running(reported, head, metrics):
            await reported.called.wait()
    assert reported.calls == [calls]
    assert [entry["event"] for entry in logs] == [event]


async def test_ticks_are_counted_with_how_late_they_were() -> None:
    missed = settled(TickState.SKIPPED, TickReason.MISSED, count=7)
    reported, metrics = ScriptedScheduleStore(ClaimedTicks(tasks=[TASK], settled=[missed])), Metrics()
    async with running(reported, COMMIT, metrics):
        await reported.called.wait()
    text = rendered(metrics)
    assert 'solstice_schedule_ticks_total{reason="missed",state="skipped"} 7.0' in text
    assert 'solstice_schedule_ticks_total{reason="on_time",state="fired"} 1.0' in text
    assert "solstice_schedule_tick_lateness_seconds_sum 0.25" in text


async def test_it_looks_again_at_the_next_tick_and_when_notified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule_ticks, "POLL_SECONDS", 1e6)
    reported = ScriptedScheduleStore(pause=1e6)
    async with running(reported, COMMIT, Metrics()):
        await reported.polled.wait()
        reported.polled.clear()
        reported.changed.set()
        await reported.polled.wait()
    assert reported.polls == 2
    soon = ScriptedScheduleStore(pause=0.05)
    async with running(soon, COMMIT, Metrics()):
        while soon.polls < 3:
            soon.polled.clear()
            await soon.polled.wait()


async def test_a_store_that_is_away_and_a_mistake_of_ours_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule_ticks, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(schedule_ticks, "POLL_SECONDS", 0.01)
    reported = ScriptedScheduleStore(
        StoreUnavailable("store", "away"), KeyError("ours"), ClaimedTicks(tasks=[TASK])
    )
    with capture_logs() as logs:
        async with running(reported, COMMIT, Metrics()):
            await reported.called.wait()
    assert [entry["event"] for entry in logs] == ["schedules.paused", "schedules.paused", "tick.fired"]


async def test_what_is_under_way_at_the_end_is_handed_back() -> None:
    reported = ScriptedScheduleStore(ClaimedTicks(tasks=[TASK]))
    async with running(reported, "never", Metrics()):
        await reported.polled.wait()
    assert reported.calls == [("released", "tick")]


async def test_ticks_taken_while_it_ends_are_handed_back() -> None:
    class Slow(ScriptedScheduleStore):
        async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
            claimed = await super().claim(worker_id, limit)
            await asyncio.sleep(0.05)
            return claimed

    reported = Slow(ClaimedTicks(tasks=[TASK]))
    async with running(reported, COMMIT, Metrics()):
        await reported.polled.wait()
    assert reported.calls == [("released", "tick")]
