"""Decides from a call's result whether a status is reported, tried again, or undeliverable. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from solstice_common.runtime.backoff import backoff_seconds
from solstice_forge.remote.protocol import CallDone, CallPostponed, CallRefused, Result

FIRST_RETRY_SECONDS: Final = 2.0
LAST_RETRY_SECONDS: Final = 120.0
GIVE_UP_SECONDS: Final = 24 * 3600.0
"""A forge that has not taken a status for this long will not take it."""
MOST_CALLS: Final = 950
"""GitHub takes a thousand statuses for a commit and context; the rest is for final states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """The times of retries, in seconds; production uses the defaults."""

    first_retry: float = FIRST_RETRY_SECONDS
    last_retry: float = LAST_RETRY_SECONDS
    give_up: float = GIVE_UP_SECONDS
    horizon: float = 30.0
    """How long the forge may still carry out a call without an answer; no other call goes out meanwhile."""


DEFAULT_RETRY_RULES: Final = RetryRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The forge shows the status; `check_id`: the check run that shows it."""

    check_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLater:
    """The status is tried again at `at`."""

    at: float
    why: str
    failed: bool
    """Whether it counts as a failure: a limit does not."""
    perhaps_done: bool
    """Whether the forge may have received it, or may receive it yet."""


UndeliverableReason = Literal[
    "forbidden",
    "forge_unavailable",
    "internal_error",
    "no_credentials",
    "not_found",
    "refused",
    "too_many_statuses",
    "unprocessable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeliverable:
    """The forge will never take it."""

    reason: UndeliverableReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusNotSent:
    """The status is not sent: the forge takes only final statuses of its context now."""


_REASONS: Final[Mapping[int, UndeliverableReason]] = MappingProxyType(
    {0: "no_credentials", 403: "forbidden", 404: "not_found", 422: "unprocessable"}
)

CallEnding = Reported | RetryLater | Undeliverable | StatusNotSent


def ending(
    result: Result[int | None],
    *,
    failures: int,
    failing_since: float | None,
    now: float,
    rng: random.Random,
    rules: RetryRules,
) -> CallEnding:
    """Return the state of a status after a call.

    `failures`: how many came in a row before it, the first of them at `failing_since`.
    """
    match result:
        case CallDone(check_id):
            return Reported(check_id=check_id)
        case CallRefused():
            return Undeliverable(reason=_reason(result), detail=f"{result.status} {result.detail}")
        case CallPostponed(limited=True):
            return RetryLater(at=max(result.at, now), why=result.why, failed=False, perhaps_done=False)
        case CallPostponed():
            if failing_since is not None and now - failing_since >= rules.give_up:
                return Undeliverable(
                    reason="forge_unavailable", detail=f"given up after {failures + 1} attempts: {result.why}"
                )
            wait = backoff_seconds(
                failures, rng=rng, base_seconds=rules.first_retry, cap_seconds=rules.last_retry
            )
            return RetryLater(
                at=max(result.at, now + wait), why=result.why, failed=True, perhaps_done=result.perhaps_done
            )


def _reason(never: CallRefused) -> UndeliverableReason:
    """Return the reason for headers and metrics."""
    if "maximum number of statuses" in never.detail:
        return "too_many_statuses"
    return _REASONS.get(never.status, "refused")
