"""Job stores for tests, with a manual clock and a job's first steps."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from solstice_common.messages import JobRequestV1, JobStatusV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason
from solstice_orchestrator.domain.retries import RetryPolicies, RetryPolicy
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitExplanation
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.workers import WorkerRegistration
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.protocol import Claim, JobStore, OutboxKind, PlanningTask
from solstice_orchestrator.store.views import LogChunk, RunView
from tests.builders import job, job_request
from tests.servers.own_thread import run_in_thread

WAIT_SECONDS: Final = 60

View = TypeVar("View")

OpenStore = Callable[..., AbstractAsyncContextManager[JobStore]]
"""Opens a store; its arguments are those of `open_store`."""

WORKER = "worker-a"
LEASE = 60.0
SUCCEEDED = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)
FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=3, step="step 1")
CANCELLED = Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED)
RELEASED = Outcome(state=JobState.WAITING, reason=Reason.RELEASED)
CHECKOUT_ERRORED = Outcome(state=JobState.ERRORED, reason=Reason.CHECKOUT_FAILED, detail="no route to host")
PROVISION_ERRORED = Outcome(state=JobState.ERRORED, reason=Reason.PROVISION_FAILED, detail="no room")


@cache
def _schema() -> bytes:
    """The file of a SQLite store without runs."""

    async def open_and_close(url: str) -> None:
        async with open_store(url):
            pass

    with TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        run_in_thread(open_and_close(f"sqlite:///{file}"))
        return file.read_bytes()


def store_file(directory: Path) -> Path:
    """The file of a new SQLite store in a directory.

    Its schema is there already: more than a hundred statements make it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "store.db"
    file.write_bytes(_schema())
    return file


def sqlite_store(directory: Path) -> str:
    """The URL of such a store."""
    return f"sqlite:///{store_file(directory)}"


def retries_after(base_seconds: float) -> RetryPolicies:
    """The default policies, with another limit of the first wait."""
    return RetryPolicies(default=RetryPolicy(base_seconds=base_seconds))


async def all_runs(store: JobStore) -> list[RunView]:
    """All runs, newest first."""
    page = await store.runs(limit=500)
    found = [*page.runs]
    while page.next is not None:
        page = await store.runs(limit=500, after=page.next)
        found += page.runs
    return found


async def waiting_jobs(
    store: JobStore, count: int, *, repository: str = "lantern/harbour", label: str = "linux"
) -> str:
    """The id of a new run with so many jobs that wait."""
    specs = [job("true", name=f"job-{number}", runs_on=label) for number in range(count)]
    return await planned(store, *specs, request=request_of(repository), planner="planner")


def worker_record(worker_id: str, *, name: str = "", capacity: Capacity | None = None) -> WorkerRegistration:
    """A worker's own record; its name is its id unless given."""
    return WorkerRegistration(
        worker_id=worker_id,
        name=name or worker_id,
        host="quay.example",
        version="1.2.3",
        capacity=capacity or Capacity(slots={"linux": 4, "illumos": 1}, limit=5),
    )


@dataclass
class ManualClock:
    """A clock that the test sets, in seconds since the epoch."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


async def admitted(store: JobStore, request: JobRequestV1 | None = None) -> str:
    """Admit a new run; return its id."""
    (admission,) = await store.admit([request or job_request()])
    return admission.run_id


async def planning_task(store: JobStore, worker: str = WORKER) -> PlanningTask:
    (task,) = await store.claim_planning(worker, 1)
    return task


async def planned(
    store: JobStore, *specs: JobSpec, request: JobRequestV1 | None = None, planner: str = WORKER
) -> str:
    """Plan a new run with these jobs (or one); return its id."""
    run_id = await admitted(store, request)
    assert await store.planned(await planning_task(store, planner), specs or (job("true"),))
    return run_id


async def claimed(
    store: JobStore,
    *,
    worker: str = WORKER,
    free: Mapping[str, int] | None = None,
    limit: int = 100,
) -> Sequence[Claim]:
    return await store.claim(worker, {"linux": 100} if free is None else free, limit)


async def running(store: JobStore, *specs: JobSpec) -> Claim:
    """The first job of a new run, claimed."""
    await planned(store, *specs)
    return (await claimed(store))[0]


def chunk(sequence: int, data: bytes = b"x") -> LogChunk:
    return LogChunk(sequence=sequence, at=1.5, data=data)


async def wait_for_stored(
    store: JobStore, read: Callable[[], Awaitable[View]], condition: Callable[[View], bool]
) -> View:
    """Wait until what `read` reads from the store is as expected; return it."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while True:
            # Before the read: a change during it sets the event again, or the wait would miss it.
            changed.clear()
            if condition(view := await read()):
                return view
            await changed.wait()


async def state_of(store: JobStore, job_id: str) -> tuple[JobState, Reason]:
    view = await store.job(job_id)
    assert view is not None
    return view.state, view.reason


async def outbox_statuses(store: JobStore) -> list[JobStatusV1]:
    """The statuses that wait in the outbox, in order."""
    rows = await store.outbox(10_000)
    return [JobStatusV1.decode(row.body) for row in rows if row.kind is OutboxKind.STATUS]


def request_of(repository: str) -> JobRequestV1:
    """A request of this repository."""
    return job_request(repo_full_name=repository, repo_url=f"https://forge.example/{repository}.git")


async def why_last(store: JobStore, run_id: str) -> WaitExplanation:
    """The explanation why the last job of the run waits."""
    job_id = (await store.jobs(run_id=run_id, limit=500))[-1].job_id
    facts = await store.waiting(job_id)
    assert facts is not None
    why = explain(facts)
    assert why is not None
    return why
