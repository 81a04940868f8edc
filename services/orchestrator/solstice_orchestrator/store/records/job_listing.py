"""Writes the queries for jobs and their services, as both databases read them. Pure.

`{}` stands for a value. The databases number parameters alike, behind `?` or `$`.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final, Literal, Unpack

from solstice_common.messages.states import JobState
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.store.views import JobFilters

Mark = Literal["?", "$"]
Condition = tuple[Any, ...]
"""A text, and the values for each `{}` in it."""

_POSITION: Final = "(SELECT position FROM jobs WHERE job_id = {})"


def jobs_query(
    mark: Mark, *, limit: int, run_id: str | None, after: str | None, **job_filters: Unpack[JobFilters]
) -> tuple[str, list[Any]]:
    """Return the query, and its values, for jobs: in workflow order, or newest first."""
    state, priority = job_filters.get("state"), job_filters.get("priority")
    filters: Sequence[Condition] = (
        ("repository = {}", job_filters.get("repository")),
        ("ref = {}", job_filters.get("ref")),
        ("runs_on = {}", job_filters.get("label")),
        ("priority = {}", None if priority is None else rank(priority)),
    )
    if run_id is not None:
        where, values = where_clause(
            mark, ("run_id = {}", run_id), ("state = {}", state), ("position > " + _POSITION, after), *filters
        )
        return f"SELECT * FROM jobs {where} ORDER BY position LIMIT {limit:d}", values  # noqa: S608  made of the constants above
    if state is None and not any(value is not None for _, value in filters):
        where, values = where_clause(mark, ("job_id < {}", after))
        return f"SELECT * FROM jobs {where} ORDER BY job_id DESC LIMIT {limit:d}", values  # noqa: S608  the same
    # One part per state; each part walks no further than it must through the index of such jobs. The states are
    # literals, not parameters, because they select partial indexes.
    where, values = where_clause(mark, ("job_id < {}", after), *filters)
    parts = " UNION ALL ".join(
        f"SELECT * FROM (SELECT * FROM jobs {where or 'WHERE true'} AND {_in_state(each)}"  # noqa: S608  the same
        f" ORDER BY job_id DESC LIMIT {limit:d}) AS part"
        for each in ([state] if state else JobState)
    )
    return f"SELECT * FROM ({parts}) AS found ORDER BY job_id DESC LIMIT {limit:d}", values  # noqa: S608  the same


def logged_services_query(mark: Mark) -> str:
    """Return the query for the services of a job's attempt that have a log.

    It looks up each name in the index, behind the last one, instead of reading all chunks: pages ask it often.
    """
    next_name = f"SELECT min(service) FROM service_log_chunks WHERE job_id = {mark}1 AND attempt = {mark}2"  # noqa: S608  made of constants
    return (
        f"WITH RECURSIVE named (service) AS ({next_name} UNION ALL"  # noqa: S608  the same
        f" SELECT ({next_name} AND service > named.service) FROM named WHERE named.service IS NOT NULL)"
        " SELECT service FROM named WHERE service IS NOT NULL"
    )


def _in_state(state: JobState) -> str:
    return f"state = '{state.value}' AND finished_at IS {'NOT ' if state.final else ''}NULL"


def where_clause(mark: Mark, *conditions: Condition, first: int = 1) -> tuple[str, list[Any]]:
    """Return the SQL conditions, with their values, of the filters that are not None.

    Their parameters are numbered from `first` on.
    """
    used = [(text, values) for text, *values in conditions if any(value is not None for value in values)]
    numbers = itertools.count(first)
    text = " AND ".join(text.format(*(f"{mark}{next(numbers)}" for _ in values)) for text, values in used)
    return (f"WHERE {text}" if text else "", [value for _, values in used for value in values])
