"""The state of a status after a call to the forge."""

import random

import pytest

from solstice_forge.remote.protocol import CallDone, CallPostponed, CallRefused, Result
from solstice_forge.statuses.call_endings import (
    DEFAULT_RETRY_RULES,
    GIVE_UP_SECONDS,
    CallEnding,
    Reported,
    RetryLater,
    Undeliverable,
    UndeliverableReason,
    ending,
)

NOW = 1_790_000_000.0


def ended(result: Result[int | None], *, failures: int = 0, failing_since: float | None = None) -> CallEnding:
    return ending(
        result,
        failures=failures,
        failing_since=failing_since,
        now=NOW,
        rng=random.Random(1),
        rules=DEFAULT_RETRY_RULES,
    )


@pytest.mark.parametrize(
    ("status", "detail", "word"),
    [
        (0, "no token", "no_credentials"),
        (403, "Resource not accessible", "forbidden"),
        (404, "Not Found", "not_found"),
        (422, "No commit found for SHA", "unprocessable"),
        (410, "Gone", "refused"),
        (422, "This SHA and context has reached the maximum number of statuses", "too_many_statuses"),
    ],
)
def test_what_a_forge_refuses_for_good_has_one_word_and_its_own(
    status: int, detail: str, word: UndeliverableReason
) -> None:
    assert ended(CallRefused(status=status, detail=detail)) == Undeliverable(
        reason=word, detail=f"{status} {detail}"
    )


def test_what_the_forge_shows_is_reported() -> None:
    assert ended(CallDone(7)) == Reported(check_id=7)


def test_a_limit_is_no_failure_however_long_the_forge_has_failed() -> None:
    limited = ended(CallPostponed(at=NOW + 60, why="429", limited=True), failures=9, failing_since=0.0)
    assert limited == RetryLater(at=NOW + 60, why="429", failed=False, perhaps_done=False)
    past = ended(CallPostponed(at=NOW - 60, why="429", limited=True))
    assert isinstance(past, RetryLater)
    assert past.at == NOW


def test_a_failure_is_tried_again_after_a_pause_and_not_before_the_forge_wants() -> None:
    soon = ended(CallPostponed(at=0.0, why="502", perhaps_done=True))
    assert isinstance(soon, RetryLater)
    assert NOW < soon.at <= NOW + DEFAULT_RETRY_RULES.last_retry
    assert (soon.why, soon.failed, soon.perhaps_done) == ("502", True, True)
    later = ended(CallPostponed(at=NOW + 500, why="502"))
    assert isinstance(later, RetryLater)
    assert (later.at, later.perhaps_done) == (NOW + 500, False)


@pytest.mark.parametrize(
    ("since", "dead"),
    [(None, False), (NOW - GIVE_UP_SECONDS + 1, False), (NOW - GIVE_UP_SECONDS, True)],
    ids=["first failure", "within a day", "a day"],
)
def test_a_forge_that_is_away_for_a_day_is_given_up(since: float | None, *, dead: bool) -> None:
    outcome = ended(CallPostponed(at=0.0, why="502 Bad Gateway"), failures=40, failing_since=since)
    assert isinstance(outcome, Undeliverable) is dead
    if isinstance(outcome, Undeliverable):
        assert (outcome.reason, outcome.detail) == (
            "forge_unavailable",
            "given up after 41 attempts: 502 Bad Gateway",
        )
