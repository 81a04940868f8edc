"""Both kinds of store report the same history for any ends in any order.

SQLite has a row for each attempt that ended.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason, RunSpec
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import AttemptKey
from tests.builders import job
from tests.servers.postgresql import PostgreSQLServer
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    RELEASED,
    SUCCEEDED,
    ManualClock,
    admitted,
    planning_task,
    retries_after,
)

TIMED_OUT: Final = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)
OUTCOMES: Final = (SUCCEEDED, FAILED, CANCELLED, RELEASED, CHECKOUT_ERRORED, TIMED_OUT)
LONG: Final = 1e6
"""Between two lives, in seconds."""


@dataclass
class JobHistory:
    """Of the first job of a run; others may wait beside it."""

    store: JobStore
    clock: ManualClock
    worker: str
    run_id: str
    job_id: str
    attempt_keys: list[AttemptKey]
    """All attempts so far, which the worker may still believe to hold."""

    async def claim(self) -> object:
        claims = await self.store.claim(self.worker, {self.worker: 1}, 1)
        self.attempt_keys += [claim.key for claim in claims]
        return [claim.key.number for claim in claims]

    async def end(self, which: int, outcome: Outcome) -> object:
        return bool(self.attempt_keys) and await self.store.finish(
            self.attempt_keys[which % len(self.attempt_keys)], outcome
        )

    async def renew(self) -> object:
        renewal = await self.store.renew(self.worker, self.attempt_keys)
        return [sorted(key.number for key in keys) for keys in (renewal.lost, renewal.cancelled)]

    async def cancel(self) -> object:
        return await self.store.cancel_job(self.job_id) is not None

    async def prioritise(self) -> object:
        return await self.store.prioritise(self.job_id, Priority.HIGH) is not None

    async def wait(self, seconds: float) -> object:
        self.clock.forward(seconds)
        return [key.number for key in await self.store.rescue() if key.job_id == self.job_id]

    async def seen(self) -> object:
        """What readers see of the job's past."""
        view = await self.store.job(self.job_id)
        assert view is not None
        attempts = await self.store.attempts(self.job_id)
        assert [each.number for each in attempts] == list(range(1, view.attempt + 1))
        pages = [await self.store.log(self.job_id, attempt=each.number) for each in attempts]
        return view.state, view.reason, view.detail, attempts, [page and page.state for page in pages]


Step = Callable[[JobHistory], Awaitable[object]]


def _ends(which: int, outcome: Outcome) -> Step:
    return lambda history: history.end(which, outcome)


def _waits(seconds: float) -> Step:
    return lambda history: history.wait(seconds)


STEPS: Final = st.lists(
    st.one_of(
        st.just(JobHistory.claim),
        st.just(JobHistory.claim),
        st.builds(_ends, st.just(-1), st.sampled_from(OUTCOMES)),
        st.builds(_ends, st.just(-1), st.sampled_from(OUTCOMES)),
        st.builds(_ends, st.integers(0, 3), st.sampled_from(OUTCOMES)),
        st.sampled_from([JobHistory.renew, JobHistory.cancel, JobHistory.prioritise]),
        st.builds(_waits, st.sampled_from([1.0, LEASE, 700.0])),
    ),
    min_size=2,
    max_size=14,
)


async def history_of(
    store: JobStore, clock: ManualClock, number: int, spec_fields: dict[str, Any], steps: Sequence[Step]
) -> object:
    """Everything visible, step by step, of a job with its own worker and label."""
    clock.now = 1_800_000_000.0 + number * LONG
    await store.rescue()
    worker = f"label-{number}"
    run_id = await admitted(store)
    specs = [job("true", name="one", runs_on=worker, retries=spec_fields["retries"])]
    specs += [job("true", name="other", runs_on="nowhere")] * spec_fields["others"]
    assert await store.planned(
        await planning_task(store), specs, RunSpec(timeout_seconds=spec_fields["timeout"])
    )
    job_id = (await store.jobs(run_id=run_id, limit=9))[0].job_id
    history = JobHistory(store, clock, worker, run_id, job_id, [])
    return [(await step(history), await history.seen()) for step in steps]


def test_both_kinds_of_store_report_the_same(tmp_path: Path, postgresql: PostgreSQLServer) -> None:
    numbers = itertools.count(1)
    with asyncio.Runner() as runner, postgresql.database() as database:
        stack = AsyncExitStack()
        stores: list[tuple[JobStore, ManualClock]] = []
        for url in (f"sqlite:///{tmp_path / 'store.db'}", database.url):
            clock = ManualClock()
            opened = open_store(
                url, clock=clock, rng=random.Random(1), lease_seconds=LEASE, retries=retries_after(0.0)
            )
            stores.append((runner.run(stack.enter_async_context(opened)), clock))

        @settings(max_examples=60, deadline=None)
        @given(
            spec_fields=st.fixed_dictionaries(
                {
                    "retries": st.integers(0, 2),
                    "others": st.integers(0, 1),
                    "timeout": st.sampled_from([None, None, LEASE / 2]),
                }
            ),
            steps=STEPS,
        )
        def same(spec_fields: dict[str, Any], steps: Sequence[Step]) -> None:
            number = next(numbers)
            reported, expected = [
                runner.run(history_of(store, clock, number, spec_fields, steps))
                for store, clock in reversed(stores)
            ]
            assert reported == expected

        try:
            same()
        finally:
            runner.run(stack.aclose())
