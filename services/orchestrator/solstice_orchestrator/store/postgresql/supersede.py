"""Concurrency groups and runs of a ref in the PostgreSQL store.

A transaction that changes a run's jobs holds the locks of that run. What follows for others of its group comes after
its commit, in separate transactions: each takes the group's lock first, and then those of the runs that it changes.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.reruns import RerunScope, rerun_scope_of
from solstice_orchestrator.store.decisions.supersede import (
    GroupMemberRow,
    RefHistory,
    ref_digest,
    runs_concerned,
    settle,
)
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, load_runs, write
from solstice_orchestrator.store.records.changes import RefRun

_GROUP_LOCK: Final = 0x5016
_REF_LOCK: Final = 0x5017
"""Classes of advisory locks."""
_GROUPS_AT_ONCE: Final = 100


async def settle_group(transaction: PostgreSQLTransaction, group: bytes) -> None:
    """Settle a group: its next member goes on, and superseded members end."""
    await _lock(transaction, _GROUP_LOCK, group)
    rows = await members_of(transaction, group)
    run_ids = runs_concerned(rows)
    if run_ids:
        unit = await load_runs(transaction, run_ids)
        settle(unit, rows)
        await write(transaction, unit.changes())


async def members_of(transaction: PostgreSQLTransaction, group: bytes) -> Sequence[GroupMemberRow]:
    """Return the members that hold the group or ask for it."""
    return [GroupMemberRow(*row) for row in await transaction.connection.fetch(_MEMBERS, group)]


async def requested_groups(transaction: PostgreSQLTransaction) -> Sequence[bytes]:
    """Return some groups that members wait for.

    A rescue settles them, in case an orchestrator died between an end and what follows from it.
    """
    rows = await transaction.connection.fetch(
        "SELECT group_key FROM ("
        "SELECT group_key FROM jobs WHERE group_key IS NOT NULL AND finished_at IS NULL AND state = 'blocked'"
        " AND reason = 'concurrency_group'"
        " UNION SELECT open_group FROM runs WHERE open_group IS NOT NULL AND NOT group_acquired"
        # Which groups is random: each is settled before long, however many there are.
        ") AS asked ORDER BY random() LIMIT $1",
        _GROUPS_AT_ONCE,
    )
    return [row["group_key"] for row in rows]


async def ref_histories(
    transaction: PostgreSQLTransaction, requests: Sequence[JobRequestV1]
) -> Sequence[RefHistory]:
    """Return the remembered runs of each request's branch or change request.

    Ended runs beyond the limit are deleted. Until the transaction ends no other one plans a run of those refs.
    """
    digests = [ref_digest(request) for request in requests]
    ref_keys = list(dict.fromkeys(digest for digest in digests if digest is not None))
    if not ref_keys:
        return [RefHistory() for _ in requests]
    # In one order, to avoid deadlocks.
    await transaction.connection.execute(
        "SELECT pg_advisory_xact_lock($1, number) FROM"
        " (SELECT DISTINCT number FROM unnest($2::integer[]) AS number ORDER BY number) AS numbers",
        _REF_LOCK,
        [_lock_number(ref_key) for ref_key in ref_keys],
    )
    runs: dict[bytes, tuple[list[RefRun], list[RefRun]]] = {ref_key: ([], []) for ref_key in ref_keys}
    for is_open, *columns in await transaction.connection.fetch(_REF_RUNS, ref_keys):
        ref_run = RefRun(*columns)
        open_runs, past = runs[ref_run.ref_key]
        (open_runs if is_open else past).append(ref_run)
    histories = {ref_key: RefHistory(open_runs, past) for ref_key, (open_runs, past) in runs.items()}
    forgettable = [run_id for history in histories.values() for run_id in history.forgettable]
    if forgettable:
        await transaction.connection.execute("DELETE FROM ref_runs WHERE run_id = ANY($1)", forgettable)
    return [RefHistory() if digest is None else histories[digest] for digest in digests]


async def rerun_scopes(
    transaction: PostgreSQLTransaction, run_ids: Sequence[str]
) -> Mapping[str, RerunScope]:
    """Return for each run whether it is a rerun, and of which jobs."""
    rows = await transaction.connection.fetch(
        "SELECT run_id, rerun_of, only_jobs FROM requests WHERE run_id = ANY($1)", run_ids
    )
    return {row["run_id"]: rerun_scope_of(row["rerun_of"], row["only_jobs"]) for row in rows}


async def _lock(transaction: PostgreSQLTransaction, what: int, digest: bytes) -> None:
    await transaction.connection.execute("SELECT pg_advisory_xact_lock($1, $2)", what, _lock_number(digest))


def _lock_number(digest: bytes) -> int:
    return int.from_bytes(digest[:4], signed=True)


_REF_RUNS: Final = (
    "SELECT EXISTS (SELECT FROM runs WHERE runs.run_id = ref_runs.run_id AND finished_at IS NULL) AS is_open,"  # noqa: S608  made of constants
    f" {', '.join(RefRun._fields)} FROM ref_runs WHERE ref_key = ANY($1::bytea[]) ORDER BY run_id DESC"
)
_MEMBERS: Final = """
SELECT NULL, run_id, 0, group_acquired,
    EXISTS (SELECT 1 FROM jobs WHERE jobs.run_id = runs.run_id AND jobs.state = 'running'),
    convert_to(concurrency, 'UTF8'), requests.created_at, requests.body
FROM runs JOIN requests USING (run_id) WHERE runs.open_group = $1
UNION ALL
SELECT jobs.job_id, jobs.run_id, jobs.position, jobs.state NOT IN ('blocked', 'approval'), jobs.state = 'running',
    jobs.spec, requests.created_at, requests.body
FROM jobs JOIN runs USING (run_id) JOIN requests USING (run_id)
WHERE jobs.group_key = $1 AND jobs.finished_at IS NULL AND (jobs.state NOT IN ('blocked', 'approval')
    OR jobs.reason = 'concurrency_group' AND (runs.group_key IS NULL OR runs.group_acquired))
"""
