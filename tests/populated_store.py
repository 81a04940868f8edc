"""A job store that holds every kind of state."""

from dataclasses import dataclass

from solstice_common.messages.states import JobState
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.store.protocol import Duplicate, JobStore
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from tests.builders import job, job_request
from tests.schedules import added_schedule, claimed_tick
from tests.stores import FAILED, SUCCEEDED, WORKER, ManualClock, admitted, claimed, planned

LOG = (b"building\n", b"\x00\xff not text\n", "größer\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulatedStore:
    """The ids of what the store holds."""

    finished: str
    """A run of two jobs, both with a log, the second of which failed."""
    errored: str
    """A run whose job was retried until its retries ran out."""
    running: str
    """A run with a running job, a waiting one, and one being cancelled."""
    waiting: str
    planning: str
    delayed: str
    """A run that starts in a day."""
    cancelled: str

    @property
    def runs(self) -> list[str]:
        return [
            self.finished,
            self.errored,
            self.running,
            self.waiting,
            self.planning,
            self.delayed,
            self.cancelled,
        ]


async def populate_schedules(store: JobStore, clock: ManualClock) -> None:
    """Add two schedules: one with missed and due ticks, one paused."""
    await added_schedule(store.schedule_store, cron="*/5 * * * *")
    await added_schedule(store.schedule_store, name="weekly", cron="@weekly", timezone="Europe/Berlin")
    clock.forward(900.0)
    task = await claimed_tick(store.schedule_store)
    await store.schedule_store.not_fired(task, TickReason.FORGE_AWAY, "no route to host", retry=True)
    await store.schedule_store.pause("weekly")


async def populate(store: JobStore, clock: ManualClock, *, with_marks: bool = True) -> PopulatedStore:
    """Fill the store; the clock advances by some hours.

    Few of its statuses still wait to be reported.
    """
    await populate_schedules(store, clock)
    finished = await planned(
        store,
        job("true", name="build"),
        job("true", name="test", needs=("build",)),
        request=job_request(idempotency_key="pushed once"),
    )
    (again,) = await store.admit([job_request(idempotency_key="pushed once")])
    assert again == Duplicate(run_id=finished)
    for outcome in (SUCCEEDED, FAILED):
        clock.forward(7.0)
        (claim,) = await claimed(store)
        chunks = [LogChunk(sequence=1 + at, at=clock() + at, data=data) for at, data in enumerate(LOG)]
        mark = LogChunk(sequence=len(LOG) + 1, at=clock(), data=b"! over\n", kind=ChunkKind.MARK)
        assert await store.append_log(claim.key, [*chunks, mark] if with_marks else chunks)
        clock.forward(30.25)
        assert await store.finish(claim.key, outcome)

    errored = await planned(store, job("true", name="lint"))
    for _ in range(3):
        clock.forward(3600.0)
        await store.rescue()
        # Not by the worker of all other jobs, which would be quarantined after that.
        (claim,) = await claimed(store, worker="unlucky")
        detail = "no route to host: forge.example"
        gone = Outcome(state=JobState.ERRORED, reason=Reason.CHECKOUT_FAILED, detail=detail)
        assert await store.finish(claim.key, gone)

    cancelled = await planned(store, job("true", runs_on="nowhere"))
    assert await store.cancel_run(cancelled) is not None

    running = await planned(
        store,
        job("sleep 600", name="build"),
        job("sleep 600", name="lint"),
        job("true", name="test", needs=("build",)),
    )
    build, lint = await claimed(store, limit=2)
    await store.renew(WORKER, [build.key, lint.key])
    assert await store.cancel_job(lint.key.job_id) is not None

    waiting = await planned(store, job("true", runs_on="illumos"), request=job_request(priority="high"))
    planning = await admitted(store)
    delayed = await admitted(
        store, job_request(not_before=format_seconds(clock() + 86_400), runs_on="illumos")
    )
    return PopulatedStore(
        finished=finished,
        errored=errored,
        running=running,
        waiting=waiting,
        planning=planning,
        delayed=delayed,
        cancelled=cancelled,
    )
