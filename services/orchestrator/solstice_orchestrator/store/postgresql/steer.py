"""Loads runs and jobs for steering decisions in PostgreSQL, and writes their changes."""

from collections.abc import Callable
from typing import TypeVar

from solstice_orchestrator.store.decisions.steer import Rerun
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.postgresql.admit import admit
from solstice_orchestrator.store.postgresql.reading import views_of_runs
from solstice_orchestrator.store.postgresql.tables.transaction import (
    KEEP,
    PostgreSQLTransaction,
    change_runs,
    load_jobs,
    load_runs,
    write,
)
from solstice_orchestrator.store.views import JobView, RunView

T = TypeVar("T")


async def steer_job(
    transaction: PostgreSQLTransaction, job_id: str, decide: Callable[[UnitOfWork], None]
) -> JobView | None:
    """Change the job's run as decided, and return the job."""
    unit = await load_jobs(transaction, [job_id])
    decide(unit)
    await write(transaction, unit.changes())
    return await views_of_runs.job(transaction.connection, job_id)


async def steer_run(
    transaction: PostgreSQLTransaction, run_id: str, decide: Callable[[UnitOfWork], None]
) -> RunView | None:
    """Change the run as decided, and return it."""
    await change_runs(transaction, [run_id], decide)
    return await views_of_runs.run(transaction.connection, run_id)


async def rerun(
    transaction: PostgreSQLTransaction, run_id: str, decide: Callable[[UnitOfWork], Rerun | T]
) -> RunView | T | None:
    """Admit the rerun that is decided, and return its run; return any other decision."""
    # Only a purge waits for these locks: admitting takes the lock of a change request, which others take before theirs.
    decided = decide(await load_runs(transaction, [run_id], lock=KEEP))
    if not isinstance(decided, Rerun):
        return decided
    request = decided.request
    (admitted,) = await admit(transaction, [request], [request.encode()], rerun=decided)
    return await views_of_runs.run(transaction.connection, admitted.run_id)
