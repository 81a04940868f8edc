"""Where ended attempts stand: in rows of their own, or in the rows of their jobs alone. Pure.

An attempt ends once, and its row or its job's is written in that change. Nothing changes the row of an ended job any more,
so where that says all of the last attempt, no other has to. A job that goes on, or ends with other words than its attempt,
says less; then the attempt has a row, and that is what counts. A job that waits again has no worker, and keeps none should
it end without having run once more.
"""

from operator import attrgetter
from typing import Final

from solstice_orchestrator.store.records.changes import Attempt, Job, RowChanges

_COLUMNS: Final = {"number": "attempt"}
_OF_JOB: Final = tuple(_COLUMNS.get(name, name) for name in Attempt._fields)
"""What of a job's row tells its last attempt."""
_last_of = attrgetter(*_OF_JOB)

ENDED_ATTEMPTS: Final = f"""(
    SELECT {", ".join(Attempt._fields)} FROM attempts
    UNION ALL
    SELECT {", ".join(_OF_JOB)} FROM jobs AS ended
    WHERE finished_at IS NOT NULL AND worker_id IS NOT NULL
        AND attempt NOT IN (SELECT number FROM attempts WHERE attempts.job_id = ended.job_id)
) AS ended_attempts"""  # noqa: S608  our own names
"""What to select all of them from, each once, in every database; the columns are the fields of `Attempt`.

`NOT IN` is looked up job by job. A join would be planned for as few rows as there are when it is planned.
"""


def job_row_holds(job: Job, attempt: Attempt) -> bool:
    """Whether the row of the job says all of this attempt at it."""
    return bool(attempt == _last_of(job))


def attempts_to_insert(changes: RowChanges) -> list[Attempt]:
    """The attempts that need rows of their own, beside what else these changes write."""
    jobs = {job.job_id: job for job in changes.jobs}
    return [
        attempt
        for attempt in changes.attempts
        if (job := jobs.get(attempt.job_id)) is None or not job_row_holds(job, attempt)
    ]
