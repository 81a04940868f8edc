"""Which of two runs is the newer one, when something depends on it. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Seniority:
    """Compares runs: the smaller is the older.

    What a request says of itself goes before the order in which it came to us: a delivery may have been late.
    """

    asked_at: float
    """When the request was made, in seconds since the epoch; never later than when it came to us."""
    age: int
    """The order in which we took responsibility."""


def seniority(submitted_at: float, admitted_at: float, age: int) -> Seniority:
    """The seniority of a run. A request that claims to come from the future is as old as its arrival."""
    return Seniority(asked_at=min(submitted_at, admitted_at), age=age)
