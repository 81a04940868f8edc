"""Reads from the SQLite store why a job waits."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.queue_times.waits import COUNTED, Holder, WaitFacts
from solstice_orchestrator.scheduling.order import overdue
from solstice_orchestrator.store.decisions.wait_facts import (
    HOLDERS,
    IN_LINE,
    MAX_JOBS_READ,
    RECENT,
    ahead_of,
    exclusions_for,
    group_of,
    holder_of,
    job_facts,
    needs_of,
    owner_starts_of_hour,
    planning_facts,
    samples_of,
    throttle_keys,
)
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.sqlite.supersede import members_of
from solstice_orchestrator.store.sqlite.tables import start_limits, worker_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction

Seen = dict[str, WaitFacts | None]


def planning(connection: sqlite3.Connection, run_id: str, moment: Moment) -> WaitFacts | None:
    run = connection.execute(
        "SELECT * FROM runs WHERE run_id = ? AND state IN ('delayed', 'planning')", (run_id,)
    ).fetchone()
    if run is None:
        return None
    return planning_facts(
        run, moment.now, worker_table.workers(connection, moment.now, moment.rules.lease_seconds)
    )


def waiting(
    connection: sqlite3.Connection, job_id: str, moment: Moment, seen: Seen | None = None
) -> WaitFacts | None:
    """Return the facts about one job.

    `seen` collects the jobs that were read on the way to a blocked one.
    """
    job = connection.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    if job is None:
        return None
    facts = job_facts(job, moment.now)
    if facts.state is JobState.BLOCKED:
        return _blocked(connection, moment, job, facts, {} if seen is None else seen)
    if facts.state in IN_LINE:
        return _in_line(SqliteTransaction(connection=connection, moment=moment), job, facts)
    if seen is not None and facts.state is JobState.RUNNING:
        return replace(facts, recent=_recent(connection, facts.runs_on))
    return facts


def _others(
    connection: sqlite3.Connection, moment: Moment, job_ids: Sequence[str], seen: Seen
) -> Sequence[WaitFacts | None]:
    """Return the facts about these jobs; each is read once, at most MAX_JOBS_READ in all."""
    facts_of_others: list[WaitFacts | None] = []
    for job_id in job_ids:
        if job_id not in seen and len(seen) < MAX_JOBS_READ:
            seen[job_id] = None
            seen[job_id] = waiting(connection, job_id, moment, seen)
        facts_of_others.append(seen.get(job_id))
    return facts_of_others


def _blocked(
    connection: sqlite3.Connection, moment: Moment, job: sqlite3.Row, facts: WaitFacts, seen: Seen
) -> WaitFacts:
    facts = replace(facts, recent=_recent(connection, facts.runs_on))
    run = connection.execute("SELECT * FROM runs WHERE run_id = ?", (facts.run_id,)).fetchone()
    membership = group_of(job, run)
    if membership is not None:
        group, holder = membership
        name, ahead = ahead_of(members_of(connection, group), holder, facts.repository)
        jobs = _jobs_of(connection, ahead[0]) if ahead else ()
        return replace(
            facts, group=name, group_ahead=ahead, group_jobs=_others(connection, moment, jobs, seen)
        )
    siblings = connection.execute(
        "SELECT job_id, name, state FROM jobs WHERE run_id = ? ORDER BY position", (facts.run_id,)
    )
    needs = needs_of(job, siblings)
    others = _others(connection, moment, [need.job_id for need in needs], seen)
    return replace(facts, needs=[replace(need, facts=each) for need, each in zip(needs, others, strict=True)])


def _jobs_of(connection: sqlite3.Connection, holder: Holder) -> Sequence[str]:
    """Return the unfinished jobs of a group's holder."""
    if holder.job_id is not None:
        return (holder.job_id,)
    rows = connection.execute(
        "SELECT job_id FROM jobs WHERE run_id = ? AND finished_at IS NULL LIMIT ?",
        (holder.run_id, MAX_JOBS_READ + 1),
    )
    return [row["job_id"] for row in rows]


def _recent(connection: sqlite3.Connection, label: str) -> Sequence[Sample]:
    rows = connection.execute(
        "SELECT repository, finished_at - started_at AS seconds FROM jobs"
        " WHERE state IN ('succeeded', 'failed', 'timed_out') AND runs_on = ? AND started_at IS NOT NULL"
        " ORDER BY finished_at DESC LIMIT ?",
        (label, RECENT),
    )
    return samples_of(rows)


def _in_line(transaction: SqliteTransaction, job: sqlite3.Row, facts: WaitFacts) -> WaitFacts:
    connection, rules, now = transaction.connection, transaction.rules, transaction.now
    cap = rules.limits.caps.cap(facts.repository)
    owner_cap = rules.limits.quotas.slots.cap(facts.owner) if facts.owner else None
    starts = start_limits.load_budget(connection, transaction.moment)
    others = exclusions_for(starts, facts)
    is_late = facts.state is JobState.WAITING and overdue(facts.since, now, rules.max_wait_seconds)
    ahead = connection.execute(
        _AHEAD_OF_LATE if is_late else _AHEAD,
        {
            "label": facts.runs_on,
            "age": job["age"],
            "priority": job["priority"],
            "turn": job["turn"],
            "since": facts.since,
            "before": now - rules.max_wait_seconds,
            "repositories": json.dumps(list(others.repositories)),
            "owners": json.dumps(list(others.owners)),
            "repository": facts.repository,
            "owner": facts.owner,
            "most": COUNTED,
        },
    ).fetchone()
    return replace(
        facts,
        ahead=min(ahead["jobs"], COUNTED),
        ahead_of_repository=ahead["own"] or 0,
        ahead_of_owner=ahead["owned"] or 0,
        cap=cap,
        running_of_repository=() if cap is None else _holders(connection, "repository = ?", facts.repository),
        owner_cap=owner_cap,
        running_of_owner=() if owner_cap is None else _holders(connection, "owner = ?", facts.owner),
        owner_hour=owner_starts_of_hour(starts, facts.owner),
        running=_holders(connection, "runs_on = ? AND finished_at IS NULL", facts.runs_on),
        workers=worker_table.workers(connection, now, rules.lease_seconds),
        throttles=starts.throttles(throttle_keys(facts)),
        recent=_recent(connection, facts.runs_on),
    )


def _holders(connection: sqlite3.Connection, which: str, value: str) -> Sequence[Holder]:
    rows = connection.execute(
        "SELECT run_id, job_id, name, repository, worker_id, started_at FROM jobs"  # noqa: S608  made of constants
        f" WHERE state = 'running' AND {which} ORDER BY started_at, age LIMIT ?",
        (value, HOLDERS),
    )
    return [holder_of(row) for row in rows]


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
    "priority = :priority AND turn < :turn",
    "priority = :priority AND turn = :turn AND age < :age",
)
