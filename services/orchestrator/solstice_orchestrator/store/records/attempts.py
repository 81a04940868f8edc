"""The rows of ended attempts: their own, or those of their jobs. Pure.

An attempt ends once, and that change writes its row or its job's row. The row of an ended job never changes again, so
when it says everything about the last attempt, the attempt needs no row. A job that goes on, or ends with another
reason than its attempt, says less; then the attempt has a row, and that row counts. A job that waits again has no
worker, and keeps none if it ends without running once more.
"""

from operator import attrgetter
from typing import Final

from solstice_orchestrator.store.records.changes import Attempt, Job, RowChanges

_COLUMNS: Final = {"number": "attempt"}
_OF_JOB: Final = tuple(_COLUMNS.get(name, name) for name in Attempt._fields)
"""The columns of a job's row that describe its last attempt."""
_last_of = attrgetter(*_OF_JOB)

ENDED_ATTEMPTS: Final = f"""(
    SELECT {", ".join(Attempt._fields)} FROM attempts
    UNION ALL
    SELECT {", ".join(_OF_JOB)} FROM jobs AS ended
    WHERE finished_at IS NOT NULL AND worker_id IS NOT NULL
        AND attempt NOT IN (SELECT number FROM attempts WHERE attempts.job_id = ended.job_id)
) AS ended_attempts"""  # noqa: S608  our own names
"""The SQL source of all ended attempts, each once, in every database; the columns are the fields of `Attempt`.

`NOT IN` is looked up job by job. A join would be planned for the few rows that exist at planning time.
"""


def job_row_holds(job: Job, attempt: Attempt) -> bool:
    """Return whether the job's row says everything about this attempt."""
    return bool(attempt == _last_of(job))


def attempts_to_insert(changes: RowChanges) -> list[Attempt]:
    """Return the attempts that need rows of their own, beside these changes' other rows."""
    jobs = {job.job_id: job for job in changes.jobs}
    return [
        attempt
        for attempt in changes.attempts
        if (job := jobs.get(attempt.job_id)) is None or not job_row_holds(job, attempt)
    ]
