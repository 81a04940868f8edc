"""Reads from the SQLite store how much work there is."""

import sqlite3
from collections.abc import Mapping, Sequence

import orjson

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.demand import DemandFacts, RunningJob, WaitingJobs
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.store.decisions.wait_facts import RECENT, samples_of
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.sqlite.tables import start_limits, worker_table


def demand(
    connection: sqlite3.Connection, moment: Moment, within_seconds: float, label: str | None
) -> DemandFacts:
    waiting = _waiting(connection, label)
    running = [
        RunningJob(label=row["runs_on"], repository=row["repository"], started_at=row["started_at"])
        for row in connection.execute(
            "SELECT runs_on, repository, started_at FROM jobs WHERE state = 'running'"
        )
    ]
    labels = {each.label for each in waiting} | {each.label for each in running}
    return DemandFacts(
        now=moment.now,
        waiting=waiting,
        running=running,
        held_back={
            (JobState(row["state"]), row["runs_on"]): row["jobs"]
            for row in connection.execute(
                "SELECT state, runs_on, count(*) AS jobs FROM jobs WHERE finished_at IS NULL"
                " AND state IN ('blocked', 'approval', 'backoff') GROUP BY state, runs_on"
            )
        },
        delayed=delayed(connection, moment.now + within_seconds),
        workers=worker_table.workers(connection, moment.now, moment.rules.lease_seconds),
        starts=start_limits.load_budget(connection, moment),
        recent={each: _recent(connection, each) for each in labels if label in {None, each}},
    )


def _waiting(connection: sqlite3.Connection, label: str | None) -> Sequence[WaitingJobs]:
    """Read the waiting jobs as one JSON text.

    Python's module releases the interpreter lock for each row, and repositories may be many.
    """
    (listed,) = connection.execute(
        "SELECT json_group_array(json_array(runs_on, repository, jobs, oldest)) FROM"  # noqa: S608  made of constants
        " (SELECT runs_on, repository, count(*) AS jobs, min(waiting_since) AS oldest FROM jobs INDEXED BY jobs_by_wait"
        f" WHERE state = 'waiting' {'' if label is None else 'AND runs_on = :label'} GROUP BY runs_on, repository)",
        {"label": label},
    ).fetchone()
    return [
        WaitingJobs(label=runs_on, repository=repository, jobs=jobs, oldest=oldest)
        for runs_on, repository, jobs, oldest in orjson.loads(listed)
    ]


def delayed(connection: sqlite3.Connection, until: float) -> Mapping[str | None, int]:
    """Count the runs that begin by that moment, per label that their requests name."""
    rows = connection.execute(
        "SELECT runs_on, count(*) AS runs FROM runs INDEXED BY runs_delayed"
        " WHERE state = 'delayed' AND plan_at <= ? GROUP BY runs_on",
        (until,),
    )
    return {row["runs_on"]: row["runs"] for row in rows}


def count_delayed(connection: sqlite3.Connection) -> int:
    """Count all delayed runs."""
    (runs,) = connection.execute(
        "SELECT count(*) FROM runs INDEXED BY runs_delayed WHERE state = 'delayed'"
    ).fetchone()
    return int(runs)


def next_due(connection: sqlite3.Connection) -> float | None:
    """Return when the first delayed run begins."""
    (due,) = connection.execute(
        "SELECT min(plan_at) FROM runs INDEXED BY runs_delayed WHERE state = 'delayed'"
    ).fetchone()
    return None if due is None else float(due)


def _recent(connection: sqlite3.Connection, label: str) -> Sequence[Sample]:
    return samples_of(
        connection.execute(
            "SELECT repository, finished_at - started_at AS seconds FROM jobs"
            " WHERE state IN ('succeeded', 'failed', 'timed_out') AND runs_on = ? AND started_at IS NOT NULL"
            " ORDER BY finished_at DESC LIMIT ?",
            (label, RECENT),
        )
    )
