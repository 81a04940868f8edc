"""Waiting jobs are given to workers."""

from collections.abc import Mapping, Sequence

from solstice_orchestrator.jobs import JobState, Reason
from solstice_orchestrator.scheduling import PRIORITY_ORDER, Candidate, assign
from solstice_orchestrator.store.leases import beat
from solstice_orchestrator.store.moves import job_row, move_job, settle_run
from solstice_orchestrator.store.protocol import AttemptKey, Claim
from solstice_orchestrator.store.rows import REQUEST, decode_spec, request_of
from solstice_orchestrator.store.transaction import Transaction


def claim(transaction: Transaction, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
    """Jobs that are the worker's from now on, under a lease, in dispatch order."""
    end_backoffs(transaction)
    chosen = assign(_candidates(transaction, free, limit), free, limit)
    if not chosen:
        return ()
    beat(transaction, worker_id)
    claims = [_give(transaction, worker_id, candidate.job_id) for candidate in chosen]
    for run_id in dict.fromkeys(each.run_id for each in claims):
        settle_run(transaction, run_id)
    return claims


def end_backoffs(transaction: Transaction) -> None:
    """Jobs whose backoff is over wait for a slot again."""
    rows = transaction.connection.execute(
        "SELECT * FROM jobs WHERE finished_at IS NULL AND state = 'backoff' AND retry_at <= ? ORDER BY age",
        (transaction.now,),
    ).fetchall()
    for row in rows:
        move_job(transaction, row, JobState.WAITING, Reason.BACKOFF_OVER, retry_at=None)


def _candidates(transaction: Transaction, free: Mapping[str, int], limit: int) -> list[Candidate]:
    """The first of each label's queue, as many as could start; the index has them in this order."""
    return [
        Candidate(job_id=row["job_id"], label=label, priority=PRIORITY_ORDER[row["priority"]], age=row["age"])
        for label, slots in free.items()
        for row in transaction.connection.execute(
            "SELECT job_id, priority, age FROM jobs"
            " WHERE finished_at IS NULL AND state = 'waiting' AND runs_on = ? ORDER BY priority, age LIMIT ?",
            (label, max(0, min(slots, limit))),
        )
    ]


def _give(transaction: Transaction, worker_id: str, job_id: str) -> Claim:
    job = job_row(transaction, job_id)
    if job is None:
        raise LookupError(job_id)
    now = transaction.now
    number, until = job["attempt"] + 1, now + transaction.rules.lease_seconds
    move_job(
        transaction,
        job,
        JobState.RUNNING,
        Reason.CLAIMED,
        attempt=number,
        worker_id=worker_id,
        lease_until=until,
        started_at=now,
        retry_at=None,
        exit_code=None,
        step=None,
    )
    transaction.connection.execute(
        "INSERT INTO attempts (job_id, number, worker_id, state, reason, started_at) VALUES (?, ?, ?, ?, ?, ?)",
        (job_id, number, worker_id, JobState.RUNNING.value, Reason.CLAIMED.value, now),
    )
    request = transaction.connection.execute(
        f"SELECT {REQUEST} FROM runs WHERE run_id = ?",  # noqa: S608  made of constants
        (job["run_id"],),
    ).fetchone()
    return Claim(
        key=AttemptKey(job_id=job_id, number=number),
        run_id=job["run_id"],
        spec=decode_spec(job["spec"]),
        request=request_of(request["request"]),
        lease_until=until,
        waiting_since=job["created_at"],
    )
