"""Waiting jobs are given to workers in the SQLite store."""

import json
import math
from collections.abc import Collection, Mapping, Sequence

from solstice_orchestrator.scheduling.order import (
    PRIORITY_ORDER,
    Candidate,
    PassedOver,
    Room,
    assign,
    full,
    room_after,
)
from solstice_orchestrator.scheduling.quarantine import claim_rounds
from solstice_orchestrator.scheduling.starts import Starts
from solstice_orchestrator.scheduling.workers import Standing, may_claim
from solstice_orchestrator.store.decisions.claim import end_backoffs, give
from solstice_orchestrator.store.decisions.transitions import Ledger
from solstice_orchestrator.store.protocol import Claim
from solstice_orchestrator.store.sqlite.tables import start_limits, workers
from solstice_orchestrator.store.sqlite.tables.transaction import (
    JOB,
    JOB_STATES,
    RUN,
    Transaction,
    job_of,
    run_of,
    write,
)


def claim(transaction: Transaction, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
    """Jobs that are the worker's from now on, under a lease, in dispatch order."""
    worker = workers.known(transaction.connection, worker_id)
    standing = Standing() if worker is None else worker.standing
    if not may_claim(standing, transaction.now):
        return ()
    _end_backoffs(transaction)
    starts = start_limits.starts(transaction.connection, transaction.moment)
    candidates = _choose(
        transaction, starts, starts.fit(free), limit, claim_rounds(standing.record, transaction.now)
    )
    if not candidates:
        return ()
    chosen = [candidate.job_id for candidate in candidates]
    start_limits.keep(transaction.connection, starts, candidates, transaction.now)
    workers.appear(transaction.connection, worker_id, transaction.now, transaction.rules.lease_seconds)
    rows = transaction.connection.execute(
        f"SELECT {JOB}, spec FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",  # noqa: S608  made of constants
        (json.dumps(chosen),),
    ).fetchall()
    ledger = _ledger(transaction, [row[:-1] for row in rows])
    specs = {row["job_id"]: row["spec"] for row in rows}
    siblings = {
        run.run_id: {
            row["job_id"]: JOB_STATES[row["state"]]
            for row in transaction.connection.execute(
                "SELECT job_id, state FROM jobs WHERE run_id = ? ORDER BY position", (run.run_id,)
            )
        }
        for run in ledger.runs.values()
    }
    claims = give(ledger, worker_id, chosen, specs, siblings)
    write(transaction, ledger.changes())
    return claims


def _end_backoffs(transaction: Transaction) -> None:
    rows = transaction.connection.execute(
        f"SELECT {JOB} FROM jobs WHERE state = 'backoff' AND retry_at <= ? ORDER BY retry_at, age",  # noqa: S608  made of constants
        (transaction.now,),
    ).fetchall()
    if rows:
        ledger = _ledger(transaction, rows)
        end_backoffs(ledger)
        write(transaction, ledger.changes())


def _ledger(transaction: Transaction, jobs: Sequence[Sequence[object]]) -> Ledger:
    """These rows of jobs alone, and their runs."""
    found = [job_of(row) for row in jobs]
    runs = transaction.connection.execute(
        f"SELECT {RUN} FROM runs WHERE run_id IN (SELECT value FROM json_each(?))",  # noqa: S608  made of constants
        (json.dumps([job.run_id for job in found]),),
    )
    return Ledger(transaction.moment, map(run_of, runs), found)


def _choose(
    transaction: Transaction,
    starts: Starts,
    free: Mapping[str, int],
    limit: int,
    rounds: Sequence[PassedOver],
) -> Sequence[Candidate]:
    """What starts next: asked for again as long as those that were filled up kept others from being seen."""
    limited, left = starts.limits.by_sender, dict(free)
    more_of = starts.rooms() if limited else Room()
    before = transaction.now - transaction.rules.max_wait_seconds
    chosen: list[Candidate] = []
    for passed_over in rounds:
        while len(chosen) < limit:
            candidates = _candidates(
                transaction,
                {label: min(slots, limit - len(chosen)) for label, slots in left.items() if slots > 0},
                before,
                passed_over.and_(full(more_of)),
                {candidate.job_id for candidate in chosen},
            )
            if limited:
                more_of = _with(more_of, starts, candidates)
            more = assign(candidates, left, limit - len(chosen), overdue_before=before, room=more_of)
            chosen += more
            for candidate in more:
                left[candidate.label] -= 1
            more_of = room_after(more_of, more)
            if not more or not limited:
                break
    return chosen


def _with(room: Room, starts: Starts, candidates: Sequence[Candidate]) -> Room:
    """The room of those who have not been met before, too."""
    met = starts.room(
        {each.repository for each in candidates} - room.repositories.keys(),
        {each.owner for each in candidates} - room.owners.keys(),
    )
    return Room(repositories={**met.repositories, **room.repositories}, owners={**met.owners, **room.owners})


def _candidates(
    transaction: Transaction,
    wanted: Mapping[str, int],
    overdue_before: float,
    passed_over: PassedOver,
    chosen: Collection[str],
) -> list[Candidate]:
    """The first of each label's queue, as many as could start; two indexes have them in their two orders."""
    # A condition more only when it is needed: the usual claim reads nothing but the beginning of an index.
    others, taken = "", {*chosen, *passed_over.jobs}
    if passed_over.repositories or passed_over.owners or taken:
        others = (
            " AND repository NOT IN (SELECT value FROM json_each(:repositories))"
            " AND owner NOT IN (SELECT value FROM json_each(:owners))"
            " AND job_id NOT IN (SELECT value FROM json_each(:taken))"
        )
    found: dict[str, Candidate] = {}
    for label, count in wanted.items():
        for condition, order in (
            (" AND waiting_since < :before", "waiting_since, age"),
            ("", "priority, turn, age"),
        ):
            rows = transaction.connection.execute(
                "SELECT job_id, priority, age, repository, owner, turn, waiting_since FROM jobs"  # noqa: S608  made of constants
                f" WHERE state = 'waiting' AND runs_on = :label{condition}{others} ORDER BY {order} LIMIT :count",
                {
                    "label": label,
                    "before": overdue_before,
                    "repositories": json.dumps(list(passed_over.repositories)),
                    "owners": json.dumps(list(passed_over.owners)),
                    "taken": json.dumps(list(taken)),
                    "count": count,
                },
            )
            for row in rows:
                found[row["job_id"]] = Candidate(
                    job_id=row["job_id"],
                    label=label,
                    priority=PRIORITY_ORDER[row["priority"]],
                    age=row["age"],
                    repository=row["repository"],
                    owner=row["owner"],
                    turn=row["turn"],
                    waiting_since=math.inf if row["waiting_since"] is None else row["waiting_since"],
                )
    return list(found.values())
