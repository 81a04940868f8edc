"""Loads and records what limits starts besides slots, in the PostgreSQL store.

That is the number of running jobs, and the counts and buckets of starts.

Claims that would take from the same label's bucket, or from those of repositories, wait for each other: a moment, and
only where a rate is set. What each takes is then counted at a moment of the database's clock after the moment of the
claim before it, so the rates are exact over all orchestrators. No claim waits for a repository's cap or an owner's
quotas: another claim at the same moment skips their jobs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from solstice_orchestrator.scheduling.order import Candidate, RemainingStarts
from solstice_orchestrator.scheduling.quotas import MINUTE
from solstice_orchestrator.scheduling.rates import BucketScope
from solstice_orchestrator.scheduling.starts import BucketRow, StartBudget, StartedRow, buckets_of, started_of
from solstice_orchestrator.store.postgresql.tables.columns import NOW
from solstice_orchestrator.store.records.moment import StoreRules

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

_REPOSITORY_LOCK: Final = 0x5015
"""The class of the advisory locks for repositories with a cap."""
_BUCKET_LOCK: Final = 0x5016
"""The class of the advisory locks for buckets."""
_OWNER_LOCK: Final = 0x5017
"""The class of the advisory locks for owners with a quota."""
_REPOSITORIES: Final = "*"
"""The lock name for the buckets of all repositories.

A claim knows only later which of them it takes from. No label has this name.
"""
_BUCKET: Final = ", ".join(BucketRow._fields)
_STARTED: Final = ", ".join(StartedRow._fields)


async def load_budget(
    connection: "Connection", rules: StoreRules, test_now: float | None, *, since_seconds: float = 0.0
) -> StartBudget:
    """Return the start budget as far as the limits need it.

    Without a limit nothing is read. It includes buckets and counts that expired in the last `since_seconds`.
    """
    limits, now = rules.limits, test_now
    if not limits.any:
        return StartBudget(limits=limits)
    if now is None:
        now = float(await connection.fetchval(f"SELECT {NOW}")) if limits.of_time else 0.0
    budget = StartBudget(
        limits=limits,
        buckets=buckets_of(
            map(
                tuple,
                await connection.fetch(
                    f"SELECT {_BUCKET} FROM start_buckets WHERE full_at > $1",  # noqa: S608  made of constants
                    now - since_seconds,
                ),
            )
        )
        if limits.rates.any
        else {},
        now=now,
    )
    return await _counted(connection, budget, since_seconds)


async def lock_budget(
    connection: "Connection", rules: StoreRules, test_now: float | None, labels: Collection[str]
) -> StartBudget:
    """Return the start budget for a claim for these labels, with its buckets locked.

    The locks are held until the transaction ends.
    """
    rates = rules.limits.rates
    names = [label for label in labels if rates.labels.rate(label) is not None]
    if rates.repositories.any:
        names.append(_REPOSITORIES)
    if names:
        # In one order, to avoid deadlocks.
        await connection.execute(
            "SELECT pg_advisory_xact_lock($1, key) FROM"
            " (SELECT DISTINCT hashtext(name) AS key FROM unnest($2::text[]) AS name ORDER BY key) AS keys",
            _BUCKET_LOCK,
            names,
        )
    # Separate statements: they see what was committed, and the time that passed, while this one waited for the locks.
    return await load_budget(connection, rules, test_now)


async def remaining(
    connection: "Connection", budget: StartBudget, repositories: Collection[str], owners: Collection[str]
) -> RemainingStarts:
    """Return how many more jobs of these repositories and owners may start.

    They are locked until the transaction ends; those that another claim has locked have none.
    """
    limits = budget.limits
    capped = sorted(each for each in repositories if limits.caps.cap(each) is not None)
    bound = sorted(each for each in owners if limits.quotas.bound(each))
    if not capped and not bound:
        return budget.remaining(repositories, owners)
    rows = await connection.fetch(
        "SELECT class, name FROM unnest($1::integer[], $2::text[]) AS one (class, name)"
        " WHERE pg_try_advisory_xact_lock(class, hashtext(name))",
        [_REPOSITORY_LOCK] * len(capped) + [_OWNER_LOCK] * len(bound),
        [*capped, *bound],
    )
    locked = {(row["class"], row["name"]) for row in rows}
    # Counted after locking: no other claim starts one of their jobs before this one commits.
    remaining_now = (await _counted(connection, budget)).remaining(repositories, owners)
    others = [each for each in capped if (_REPOSITORY_LOCK, each) not in locked]
    strangers = [each for each in bound if (_OWNER_LOCK, each) not in locked]
    return RemainingStarts(
        repositories={**remaining_now.repositories, **dict.fromkeys(others, 0)},
        owners={**remaining_now.owners, **dict.fromkeys(strangers, 0)},
    )


async def record_starts(
    connection: "Connection", budget: StartBudget, chosen: Sequence[Candidate], now: float
) -> None:
    """Record the starts of a claim, and delete expired counts and buckets."""
    buckets = budget.spent(chosen, now)
    if buckets:
        await connection.execute(
            "INSERT INTO start_buckets SELECT * FROM unnest"
            "($1::text[], $2::text[], $3::double precision[], $4::double precision[], $5::double precision[])"
            " ON CONFLICT (scope, name) DO UPDATE"
            " SET amount = excluded.amount, at = excluded.at, full_at = excluded.full_at",
            *[list(column) for column in zip(*buckets, strict=True)],
        )
    if any(row.scope == BucketScope.REPOSITORY for row in buckets):
        await connection.execute(
            "DELETE FROM start_buckets WHERE scope = $1 AND full_at <= $2",
            BucketScope.REPOSITORY.value,
            now - MINUTE,
        )
    counted = budget.counted(chosen, now)
    if counted:
        await connection.execute(
            "INSERT INTO owner_starts SELECT * FROM unnest($1::text[], $2::double precision[], $3::integer[])"
            " ON CONFLICT (owner, until) DO UPDATE SET starts = owner_starts.starts + excluded.starts",
            *[list(column) for column in zip(*counted, strict=True)],
        )
        # Not those that a claim with an earlier time must still count; nor those that another claim is deleting.
        await connection.execute(
            "DELETE FROM owner_starts WHERE (owner, until) IN"
            " (SELECT owner, until FROM owner_starts WHERE until <= $1 FOR UPDATE SKIP LOCKED)",
            now - MINUTE,
        )


async def _counted(connection: "Connection", budget: StartBudget, since_seconds: float = 0.0) -> StartBudget:
    """Return the budget with the current running jobs and counted starts."""
    limits = budget.limits
    running: Mapping[str, int] = {}
    if limits.of_running:
        rows = await connection.fetch(
            "SELECT repository, count(*) AS jobs FROM jobs WHERE state = 'running' GROUP BY repository"
        )
        running = {row["repository"]: row["jobs"] for row in rows}
    if not limits.quotas.starts_per_hour.any:
        return replace(budget, running=running)
    rows = await connection.fetch(
        f"SELECT {_STARTED} FROM owner_starts WHERE until > $1",  # noqa: S608  made of constants
        budget.now - since_seconds,
    )
    return replace(budget, running=running, started=started_of(map(tuple, rows)))
