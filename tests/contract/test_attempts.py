"""Every store returns the whole history of a job, each attempt once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.statuses import detail_of
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.admin.record import recorded_runs
from solstice_orchestrator.store.protocol import AttemptKey, OutboxKind
from solstice_orchestrator.store.views import AttemptView, LogState
from tests.builders import job
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    claimed,
    planned,
    state_of,
)

TIMED_OUT: Final = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)
LOST: Final = Outcome(state=JobState.ERRORED, reason=Reason.AGENT_LOST, detail=f"held by {WORKER}")
"""The holder reports nothing; the lease runs out."""
IN_CONTAINER: Final = replace(FAILED, image="localhost/build:1@sha256:" + "a" * 64, provisioning_seconds=1.5)
CANCEL: Final = "cancel"
"""A person cancels the job; this is no attempt."""
Step = Outcome | str

HISTORIES: Final[dict[str, tuple[JobState, Sequence[Step]]]] = {
    "it succeeded": (JobState.SUCCEEDED, [SUCCEEDED]),
    "it failed": (JobState.FAILED, [FAILED, FAILED]),
    "it succeeded at its author's second try": (JobState.SUCCEEDED, [FAILED, SUCCEEDED]),
    "its author's tries are used up": (JobState.TIMED_OUT, [FAILED, TIMED_OUT]),
    "the world was wrong and then was not": (JobState.SUCCEEDED, [CHECKOUT_ERRORED, SUCCEEDED]),
    "the world was wrong too often": (
        JobState.ERRORED,
        [CHECKOUT_ERRORED, CHECKOUT_ERRORED, CHECKOUT_ERRORED],
    ),
    "it was lost and found again": (JobState.SUCCEEDED, [LOST, SUCCEEDED]),
    "it was lost too often": (JobState.ERRORED, [LOST, LOST, LOST]),
    "it was cancelled while it ran": (JobState.CANCELLED, [CANCEL, CANCELLED]),
    "it succeeded though it was to end": (JobState.SUCCEEDED, [CANCEL, SUCCEEDED]),
    "it was to end and the world was wrong": (JobState.CANCELLED, [CANCEL, CHECKOUT_ERRORED]),
    "it was to end and was lost": (JobState.CANCELLED, [CANCEL, LOST]),
    "it was to end and was handed back": (JobState.CANCELLED, [CANCEL, RELEASED]),
    "it was handed back and then cancelled": (JobState.CANCELLED, [RELEASED, CANCEL]),
    "it was cancelled before another try of its author's": (JobState.CANCELLED, [FAILED, CANCEL]),
    "it was cancelled while the world was wrong": (JobState.CANCELLED, [CHECKOUT_ERRORED, CANCEL]),
    "it was handed back and then failed": (JobState.FAILED, [RELEASED, FAILED, FAILED]),
    "it failed in a container": (JobState.FAILED, [FAILED, IN_CONTAINER]),
    "it had a container and then none": (JobState.SUCCEEDED, [IN_CONTAINER, CHECKOUT_ERRORED, SUCCEEDED]),
    "it was cancelled before it ran": (JobState.CANCELLED, [CANCEL]),
}
"""The end of a job whose author allows one retry, and the steps that lead there."""
LIVES: Final = [pytest.param(end, steps, id=name) for name, (end, steps) in HISTORIES.items()]


async def claimed_attempt(store: JobStore, clock: ManualClock) -> AttemptKey:
    """The next attempt at the only job, once it waits again."""
    clock.forward(3600.0)
    await store.rescue()
    (claim,) = await claimed(store)
    await store.renew(WORKER, [claim.key])
    return claim.key


async def ended(store: JobStore, clock: ManualClock, key: AttemptKey, outcome: Outcome) -> AttemptView:
    """The attempt as its report from now on, given when it began."""
    started_at = clock()
    if outcome is LOST:
        clock.forward(2 * LEASE)
        assert await store.rescue() == [key]
    else:
        clock.forward(7.25)
        assert await store.finish(key, outcome)
    return AttemptView(
        number=key.number,
        worker_id=WORKER,
        state=outcome.state,
        reason=outcome.reason,
        started_at=started_at,
        finished_at=clock(),
        exit_code=outcome.exit_code,
        step=outcome.step,
        detail=detail_of(outcome),
        image=outcome.image,
        provisioning_seconds=outcome.provisioning_seconds,
    )


async def history_of(
    store: JobStore, clock: ManualClock, job_id: str, steps: Sequence[Step]
) -> list[AttemptView]:
    """The expected report about the job's attempts after these steps."""
    history: list[AttemptView] = []
    attempt_key: AttemptKey | None = None
    for number, step in enumerate(steps, 1):
        # The last request comes while no worker has the job.
        if attempt_key is None and (isinstance(step, Outcome) or number < len(steps)):
            attempt_key = await claimed_attempt(store, clock)
        if isinstance(step, str):
            assert await store.cancel_job(job_id) is not None
        elif attempt_key is not None:
            history.append(await ended(store, clock, attempt_key, step))
            attempt_key = None
    return history


async def job_of(store: JobStore) -> str:
    """The id of the only job, which may fail once by itself."""
    run_id = await planned(store, job("true", retries=1))
    (view,) = await store.jobs(run_id=run_id, limit=9)
    return view.job_id


@pytest.mark.parametrize(("end", "steps"), LIVES)
async def test_attempts_are_reported_as_they_ended(
    store: JobStore, clock: ManualClock, end: JobState, steps: Sequence[Step]
) -> None:
    job_id = await job_of(store)
    history = await history_of(store, clock, job_id, steps)
    assert (await state_of(store, job_id))[0] is end
    assert await store.attempts(job_id) == history
    for attempt in history:
        page = await store.log(job_id, attempt=attempt.number)
        assert page is not None
        assert page.state is LogState.CLOSED


@pytest.mark.parametrize(("end", "steps"), LIVES)
async def test_an_end_that_is_repeated_counts_if_it_is_the_same(
    store: JobStore, clock: ManualClock, end: JobState, steps: Sequence[Step]
) -> None:
    job_id = await job_of(store)
    history = await history_of(store, clock, job_id, steps)
    outcomes = [step for step in steps if isinstance(step, Outcome)]
    for attempt, outcome in zip(history, outcomes, strict=True):
        key = AttemptKey(job_id=job_id, number=attempt.number)
        assert await store.finish(key, outcome)
        assert not await store.finish(key, SUCCEEDED if outcome is not SUCCEEDED else FAILED)
        # An attempt whose end was requested is not lost.
        lost = (await store.renew(WORKER, [key])).lost
        assert lost == ({key} if outcome is LOST else frozenset())
    assert not await store.finish(AttemptKey(job_id=job_id, number=len(history) + 1), SUCCEEDED)
    assert (await state_of(store, job_id))[0] is end
    assert await store.attempts(job_id) == history


@pytest.mark.parametrize(("end", "steps"), LIVES)
async def test_a_trace_has_the_seconds_of_every_attempt(
    store: JobStore, store_url: str, clock: ManualClock, end: JobState, steps: Sequence[Step]
) -> None:
    assert end.final
    history = await history_of(store, clock, await job_of(store), steps)
    took = [each.finished_at - each.started_at for each in history if each.finished_at is not None]
    assert len(took) == len(history)
    runs = [run async for run in recorded_runs(store_url, since=0.0)]
    assert [each.seconds for run in runs for each in run] == ([sum(took)] if took else [])


async def test_a_dead_letter_reports_jobs_that_had_ended_before(store: JobStore, clock: ManualClock) -> None:
    await planned(store, job("true", name="spoiled"), job("true", name="slow", runs_on="illumos"))
    for _ in range(3):
        await ended(store, clock, await claimed_attempt(store, clock), CHECKOUT_ERRORED)
    (slow,) = await claimed(store, worker="another", free={"illumos": 1})
    await store.finish(slow.key, SUCCEEDED)
    (dead_letter,) = [row for row in await store.outbox(100) if row.kind is OutboxKind.DEAD_LETTER]
    history = dead_letter.headers["x-solstice-history"].splitlines()
    assert [line.partition(" on ")[0] for line in history] == ["spoiled #1", "spoiled #2", "spoiled #3"]


@pytest.mark.parametrize(
    "outcome", [LOST, RELEASED, CHECKOUT_ERRORED, IN_CONTAINER], ids=["lost", "released", "errored", "failed"]
)
async def test_an_attempt_shows_its_image_from_its_beginning_and_when_it_was_interrupted(
    store: JobStore, clock: ManualClock, outcome: Outcome
) -> None:
    job_id = await job_of(store)
    key = await claimed_attempt(store, clock)
    assert [attempt.image for attempt in await store.attempts(job_id)] == [""]
    assert await store.record_image(key, IN_CONTAINER.image)
    assert [attempt.image for attempt in await store.attempts(job_id)] == [IN_CONTAINER.image]
    history = await ended(store, clock, key, outcome)
    assert await store.attempts(job_id) == [replace(history, image=IN_CONTAINER.image)]
    # Another attempt may get another image, and this one is over.
    assert not await store.record_image(key, "late")
    again = await claimed_attempt(store, clock)
    assert [attempt.image for attempt in await store.attempts(job_id)] == [IN_CONTAINER.image, ""]
    assert not await store.record_image(key, "late")
    assert await store.finish(again, SUCCEEDED)
    assert [attempt.image for attempt in await store.attempts(job_id)] == [IN_CONTAINER.image, ""]


async def test_an_attempt_shows_how_long_its_container_or_vm_is_prepared(
    store: JobStore, clock: ManualClock
) -> None:
    job_id = await job_of(store)
    key = await claimed_attempt(store, clock)
    clock.forward(5.0)
    assert await store.provisioning(key, 4.0, done=False)
    clock.forward(2.0)
    facts = await store.waiting(job_id)
    assert facts is not None
    assert facts.provisioning_since == pytest.approx(clock() - 6.0)
    assert await store.provisioning(key, 6.5, done=True)
    facts = await store.waiting(job_id)
    assert facts is not None
    assert facts.provisioning_since is None
    (attempt,) = await store.attempts(job_id)
    assert attempt.provisioning_seconds == 6.5
    assert await store.finish(key, RELEASED)
    assert not await store.provisioning(key, 9.0, done=False)


async def test_what_an_earlier_attempt_left_is_no_preparation_of_the_next(
    store: JobStore, clock: ManualClock
) -> None:
    job_id = await job_of(store)
    key = await claimed_attempt(store, clock)
    clock.forward(5.0)
    assert await store.provisioning(key, 4.0, done=False)
    assert await store.finish(key, RELEASED)
    await claimed_attempt(store, clock)
    facts = await store.waiting(job_id)
    assert facts is not None
    assert facts.provisioning_since is None
    assert (await store.attempts(job_id))[-1].provisioning_seconds is None
