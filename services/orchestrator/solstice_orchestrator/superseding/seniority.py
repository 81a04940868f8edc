"""Which of two runs is the newer one. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Seniority:
    """Compares runs: the smaller is the older.

    The time that a request states counts before the order of arrival, because a delivery may be late.
    """

    requested_at: float
    """When the request was made, in seconds since the epoch; never later than its arrival."""
    age: int
    """The order in which the orchestrator accepted the requests."""


def seniority(submitted_at: float, admitted_at: float, age: int) -> Seniority:
    """The seniority of a run; a time in the future is replaced by the arrival."""
    return Seniority(requested_at=min(submitted_at, admitted_at), age=age)
