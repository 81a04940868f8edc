"""Loads runs and jobs for steering decisions in SQLite, and writes their changes."""

from collections.abc import Callable
from typing import TypeVar

from solstice_orchestrator.store.decisions.steer import Rerun
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.sqlite.admit import admit
from solstice_orchestrator.store.sqlite.reading import views_of_runs
from solstice_orchestrator.store.sqlite.tables.transaction import (
    SqliteTransaction,
    change_runs,
    load_jobs,
    load_runs,
    write,
)
from solstice_orchestrator.store.views import JobView, RunView

T = TypeVar("T")


def steer_job(
    transaction: SqliteTransaction, job_id: str, decide: Callable[[UnitOfWork], None]
) -> JobView | None:
    """Change the job's run as decided, and return the job."""
    unit = load_jobs(transaction, [job_id])
    decide(unit)
    write(transaction, unit.changes())
    return views_of_runs.job(transaction.connection, job_id)


def steer_run(
    transaction: SqliteTransaction, run_id: str, decide: Callable[[UnitOfWork], None]
) -> RunView | None:
    """Change the run as decided, and return it."""
    change_runs(transaction, [run_id], decide)
    return views_of_runs.run(transaction.connection, run_id)


def rerun(
    transaction: SqliteTransaction, run_id: str, decide: Callable[[UnitOfWork], Rerun | T]
) -> RunView | T | None:
    """Admit the rerun that is decided, and return its run; return any other decision."""
    decided = decide(load_runs(transaction, [run_id]))
    if not isinstance(decided, Rerun):
        return decided
    (admitted,) = admit(transaction, [decided.request], [decided.request.encode()], reruns=True)
    transaction.connection.execute(
        "UPDATE runs SET rerun_of = ?, only_jobs = ? WHERE run_id = ?",
        (decided.rerun_of, decided.only_jobs, admitted.run_id),
    )
    return views_of_runs.run(transaction.connection, admitted.run_id)
