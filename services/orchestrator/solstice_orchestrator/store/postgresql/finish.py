"""Ends attempts in the PostgreSQL store; this process's own in one statement, without reading rows.

Many runs have one job. The process that claims it knows the rows of both after the claim, and until the end almost
never does another change what the end depends on. So the end is decided on these rows, and written if they are still
the same; the statement itself compares the rows and the clock. If they differ, nothing is written, and the end takes
the usual way.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from solstice_common.messages import REMEMBERED_BYTES
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Outcome, Reason
from solstice_orchestrator.domain.statuses import Status
from solstice_orchestrator.store.decisions.finish import AttemptEnd, by_key, ended_attempts, finish_attempts
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.postgresql.tables.transaction import (
    PostgreSQLTransaction,
    attempts_of,
    load_ending,
    write,
)
from solstice_orchestrator.store.postgresql.tables.writing import statement_if_unchanged
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.moment import Moment, StoreRules

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import PostgreSQLDatabase

REMEMBERED: Final = 1024
"""Number of attempts, of one or two kilobytes each; a process that runs more reads some again."""

_NOT_AS_KNOWN: Final = INFRASTRUCTURE | {Reason.RELEASED}
"""Ends that depend on a lease, which other statements renew, or on the worker's row."""


class SingleJobRun(Struct, frozen=True, gc=False):
    """A run of one job, which is running."""

    run: Run
    job: Job
    subject: Status
    """What its statuses have in common."""


class ClaimCache:
    """The attempts that this process has claimed and not ended."""

    def __init__(self) -> None:
        self._claims: dict[AttemptKey, SingleJobRun] = {}

    def keep(self, claimed: Iterable[SingleJobRun]) -> None:
        """Keep these rows after their claim has committed."""
        for each in claimed:
            if _is_simple(each):
                self._claims[AttemptKey(job_id=each.job.job_id, number=each.job.attempt)] = each
        while len(self._claims) > REMEMBERED:
            del self._claims[next(iter(self._claims))]

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        """Forget these attempts, whose rows have changed since."""
        for key in keys:
            self._claims.pop(key, None)

    def take(self, key: AttemptKey, outcome: Outcome) -> SingleJobRun | None:
        """Return and forget the rows of an attempt, if they are enough to end it."""
        single_job_run = self._claims.pop(key, None)
        return None if outcome.reason in _NOT_AS_KNOWN else single_job_run


async def finish(transaction: PostgreSQLTransaction, group: Sequence[AttemptEnd]) -> Sequence[bool]:
    """Record the ends of attempts; True also when this same end was recorded before."""
    unit, going_on = await load_ending(transaction, list({end.key.job_id for end in group}))
    past = await attempts_of(transaction, [key.job_id for key in ended_attempts(unit, group)])
    answers = finish_attempts(unit, group, by_key(past), going_on)
    await write(transaction, unit.changes())
    return answers


def _is_simple(claimed: SingleJobRun) -> bool:
    """Return whether the rows are simple enough to keep.

    The end must change no other rows, with no earlier failures to report, and the request must be small.
    """
    run, job = claimed.run, claimed.job
    in_group = run.group_key is not None or job.group_key is not None
    return not (in_group or job.failures or len(run.request) > REMEMBERED_BYTES)


async def end_at_once(
    database: "PostgreSQLDatabase",
    rules: StoreRules,
    now: float,
    group: Sequence[tuple[AttemptEnd, SingleJobRun]],
    *,
    needs_now: bool,
) -> float | None:
    """Record these ends, and return the database's time; None: nothing was changed.

    After None the rows must be read. `needs_now`: whether the database's clock must show `now`, within the tolerance for a
    decision.
    """
    # Changes come out in the order of the ends, and rows are locked in the order of the changes.
    in_order = sorted(group, key=_run_id)
    single_job_runs = [each for _, each in in_order]
    unit = UnitOfWork(
        Moment(now, rules),
        [each.run for each in single_job_runs],
        [each.job for each in single_job_runs],
        subjects={each.run.run_id: each.subject for each in single_job_runs},
    )
    answers = finish_attempts(unit, [end for end, _ in in_order], {})
    changes = unit.changes()
    if not all(answers) or not changes.rows_alone:
        return None
    statement, arguments = statement_if_unchanged(changes, now if needs_now else None)
    rows = await database.at_once(statement, *arguments)
    return None if rows is None else float(rows[0]["now"])


def _run_id(ended: tuple[AttemptEnd, SingleJobRun]) -> str:
    return ended[1].run.run_id
