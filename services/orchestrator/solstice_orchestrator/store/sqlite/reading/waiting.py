"""Reads from the SQLite store why a job waits."""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from solstice_orchestrator.queue_times.waits import COUNTED, WaitFacts
from solstice_orchestrator.store.decisions import wait_walk
from solstice_orchestrator.store.decisions.wait_facts import planning_facts
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.sqlite.supersede import members_of
from solstice_orchestrator.store.sqlite.tables import start_limits, worker_table


def planning(connection: sqlite3.Connection, run_id: str, moment: Moment) -> WaitFacts | None:
    run = connection.execute(
        "SELECT * FROM runs WHERE run_id = ? AND state IN ('delayed', 'planning')", (run_id,)
    ).fetchone()
    if run is None:
        return None
    return planning_facts(
        run, moment.now, worker_table.workers(connection, moment.now, moment.rules.lease_seconds)
    )


def waiting(connection: sqlite3.Connection, job_id: str, moment: Moment) -> WaitFacts | None:
    """Return the facts about one job."""
    loads = wait_walk.waiting(job_id, moment.rules)
    loaded: Any = None
    try:
        while True:
            loaded = _load(connection, moment, loads.send(loaded))
    except StopIteration as end:
        facts: WaitFacts | None = end.value
        return facts


def _load(connection: sqlite3.Connection, moment: Moment, load: wait_walk.Load) -> Any:
    match load:
        case wait_walk.LoadRows(query, values):
            loaded: Any = connection.execute(_ROWS[query], values).fetchall()
        case wait_walk.LoadNow():
            loaded = moment.now
        case wait_walk.LoadGroup(group):
            loaded = members_of(connection, group)
        case wait_walk.LoadBudget():
            loaded = start_limits.load_budget(connection, moment)
        case wait_walk.LoadAhead():
            loaded = _ahead(connection, load, before=moment.now - moment.rules.max_wait_seconds)
        case wait_walk.LoadWorkers():
            loaded = worker_table.workers(connection, moment.now, moment.rules.lease_seconds)
    return loaded


def _ahead(connection: sqlite3.Connection, load: wait_walk.LoadAhead, *, before: float) -> sqlite3.Row:
    facts = load.facts
    row: sqlite3.Row = connection.execute(
        _AHEAD_OF_LATE if load.is_late else _AHEAD,
        {
            "label": facts.runs_on,
            "age": load.job["age"],
            "priority": load.job["priority"],
            "start_tag": load.job["start_tag"],
            "since": facts.since,
            "before": before,
            "repositories": json.dumps(list(load.others.repositories)),
            "owners": json.dumps(list(load.others.owners)),
            "repository": facts.repository,
            "owner": facts.owner,
            "most": COUNTED,
        },
    ).fetchone()
    return row


_RUNNING: Final = (
    "SELECT run_id, job_id, name, repository, worker_id, started_at FROM jobs"
    " WHERE state = 'running' AND {} ORDER BY started_at, age LIMIT ?"
)
_ROWS: Final[Mapping[wait_walk.WaitQuery, str]] = {
    wait_walk.WaitQuery.JOB: "SELECT * FROM jobs WHERE job_id = ?",
    wait_walk.WaitQuery.RUN: "SELECT * FROM runs WHERE run_id = ?",
    wait_walk.WaitQuery.JOBS_OF_RUN: "SELECT job_id, name, state FROM jobs WHERE run_id = ? ORDER BY position",
    wait_walk.WaitQuery.UNFINISHED_JOBS: "SELECT job_id FROM jobs WHERE run_id = ? AND finished_at IS NULL LIMIT ?",
    wait_walk.WaitQuery.RECENT: "SELECT repository, finished_at - started_at AS seconds FROM jobs"
    " WHERE state IN ('succeeded', 'failed', 'timed_out') AND runs_on = ? AND started_at IS NOT NULL"
    " ORDER BY finished_at DESC LIMIT ?",
    wait_walk.WaitQuery.RUNNING_OF_REPOSITORY: _RUNNING.format("repository = ?"),
    wait_walk.WaitQuery.RUNNING_OF_OWNER: _RUNNING.format("owner = ?"),
    # With `finished_at IS NULL`, SQLite can use the index of a label's unfinished jobs.
    wait_walk.WaitQuery.RUNNING_OF_LABEL: _RUNNING.format("runs_on = ? AND finished_at IS NULL"),
}
_IN_LINE: Final = (
    "SELECT age, repository, owner FROM jobs WHERE state = 'waiting' AND runs_on = :label AND age <> :age"
    " AND repository NOT IN (SELECT value FROM json_each(:repositories))"
    " AND owner NOT IN (SELECT value FROM json_each(:owners))"
)


def _counted(*conditions: str) -> str:
    """Count the jobs ahead; each condition is the beginning of an index.

    Reading stops as soon as enough were seen.
    """
    parts = " UNION ".join(f"SELECT * FROM ({_IN_LINE} AND {each} LIMIT :most)" for each in conditions)  # noqa: S608  made of constants
    return (
        "SELECT count(*) AS jobs, sum(repository = :repository) AS own, sum(owner = :owner) AS owned"  # noqa: S608  made of constants
        f" FROM ({parts})"
    )


_AHEAD_OF_LATE: Final = _counted("waiting_since < :since", "waiting_since = :since AND age < :age")
_AHEAD: Final = _counted(
    "waiting_since < :before",
    "priority < :priority",
    "priority = :priority AND start_tag < :start_tag",
    "priority = :priority AND start_tag = :start_tag AND age < :age",
)
