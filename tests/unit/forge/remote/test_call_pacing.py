"""When the next call to a forge may go out."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_forge.remote.call_pacing import (
    LONGEST_SECONDS,
    SECONDARY_SECONDS,
    CallLimits,
    ForgeAnswer,
    answered,
    called,
    is_limited,
    next_call_at,
)
from solstice_forge.remote.protocol import CallPace

NOW = 1_790_000_000.0
UNHURRIED = settings(deadline=None)
PACE = CallPace(interval_seconds=1.0, burst=5, at_once=4)
NONE = CallLimits()


def answer(status: int, detail: str = "", **headers: str) -> ForgeAnswer:
    return ForgeAnswer(
        status=status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        detail=detail,
    )


@pytest.mark.parametrize(
    ("given_answer", "wait"),
    [
        (answer(201), 0.0),
        (answer(201, x_ratelimit_remaining="4000", x_ratelimit_reset=f"{NOW + 900:.0f}"), 0.0),
        (answer(201, x_ratelimit_remaining="0", x_ratelimit_reset=f"{NOW + 900:.0f}"), 901.0),
        (answer(201, x_ratelimit_remaining="8", x_ratelimit_reset=f"{NOW + 900:.0f}"), 901.0),
        (answer(201, x_ratelimit_remaining="9", x_ratelimit_reset=f"{NOW + 900:.0f}"), 0.0),
        (answer(201, x_ratelimit_remaining="0", x_ratelimit_reset=f"{NOW - 5:.0f}"), 0.0),
        (answer(201, x_ratelimit_remaining="0"), 0.0),
        (answer(200, ratelimit_remaining="0", ratelimit_reset=f"{NOW + 30:.0f}"), 31.0),
        (answer(403, x_ratelimit_remaining="0", x_ratelimit_reset=f"{NOW + 60:.0f}"), 61.0),
        (answer(429, retry_after="17"), 17.0),
        (answer(403, retry_after="17"), 17.0),
        (answer(403, retry_after="17", x_ratelimit_remaining="0", x_ratelimit_reset=f"{NOW + 60:.0f}"), 17.0),
        (answer(503, retry_after="5"), 5.0),
        (answer(503), 0.0),
        (answer(201, retry_after="5"), 0.0),
        (answer(403, "You have exceeded a secondary rate limit"), SECONDARY_SECONDS),
        (answer(403, "You have triggered an abuse detection mechanism"), SECONDARY_SECONDS),
        (answer(429), SECONDARY_SECONDS),
        (answer(403, "Resource not accessible by integration"), 0.0),
        (answer(404), 0.0),
        (answer(429, retry_after="Tue, 22 Sep 2026 10:13:32 GMT"), 1_790_072_012.0 - NOW),
        (answer(429, retry_after="soon"), SECONDARY_SECONDS),
        (answer(429, retry_after="-3"), SECONDARY_SECONDS),
        (answer(429, retry_after="1e99"), LONGEST_SECONDS),
        (answer(429, retry_after="nan"), SECONDARY_SECONDS),
        (answer(403, x_ratelimit_remaining="0", x_ratelimit_reset="99999999999"), LONGEST_SECONDS),
    ],
    ids=[
        "no limits told",
        "plenty left",
        "none left",
        "only the reserve left",
        "one more than the reserve",
        "the window is over",
        "no end of the window told",
        "GitLab's headers",
        "past the primary limit",
        "told how long",
        "told how long, as GitHub does",
        "retry-after goes before the window",
        "a server in trouble says when",
        "a server in trouble",
        "a success has nothing to retry",
        "a secondary limit",
        "a secondary limit in its older words",
        "a limit without a word",
        "a refusal that is no limit",
        "not found",
        "told as a date",
        "told unreadably",
        "told below zero",
        "told too long",
        "told no number",
        "a window without end",
    ],
)
def test_an_answer_says_when_the_next_call_may_go_out(given_answer: ForgeAnswer, wait: float) -> None:
    limits = answered(NONE, given_answer, reserve=8, now=NOW)
    expected = min(wait, LONGEST_SECONDS)
    assert max(next_call_at(limits, PACE, NOW), NOW) == NOW + expected


def test_limits_that_do_not_say_how_long_are_waited_for_longer_and_longer_until_a_call_succeeds() -> None:
    limits, waits, now = NONE, [], NOW
    for _ in range(9):
        limits = answered(limits, answer(429), reserve=8, now=now)
        waits.append(limits.not_before - now)
        now = limits.not_before
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    limits = answered(answered(limits, answer(201), reserve=8, now=now), answer(429), reserve=8, now=now)
    assert limits.not_before - now == 60.0


@pytest.mark.parametrize(
    ("given_answer", "limited"),
    [
        (answer(429), True),
        (answer(403, retry_after="1"), True),
        (answer(403, "API rate limit exceeded for installation ID 1"), True),
        (answer(403, x_ratelimit_remaining="0"), True),
        (answer(403, x_ratelimit_remaining="17"), False),
        (answer(403), False),
        (answer(404, retry_after="1"), False),
        (answer(503, retry_after="1"), False),
    ],
)
def test_a_limit_is_distinguished_from_a_refusal(given_answer: ForgeAnswer, limited: bool) -> None:
    assert is_limited(given_answer) is limited


def test_a_burst_goes_out_at_once_and_then_one_call_each_interval() -> None:
    limits, now, sent = NONE, NOW, []
    for _ in range(8):
        now = max(now, next_call_at(limits, PACE, now))
        limits = called(limits, PACE, now)
        sent.append(now - NOW)
    assert sent == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0]


PAUSES = st.lists(st.floats(0.0, 20.0), max_size=60)


@UNHURRIED
@given(pauses=PAUSES, burst=st.integers(1, 10), interval=st.floats(0.01, 10.0))
def test_no_window_has_more_calls_than_its_intervals_and_a_burst(
    pauses: list[float], burst: int, interval: float
) -> None:
    pace = CallPace(interval_seconds=interval, burst=burst, at_once=4)
    limits, now, sent = NONE, NOW, []
    for pause in pauses:
        now = max(now + pause, next_call_at(limits, pace, now + pause))
        limits = called(limits, pace, now)
        sent.append(now)
    for start, begun in enumerate(sent):
        for count, at in enumerate(sent[start:], start=1):
            assert count <= (at - begun) / interval + burst + 1e-3


HEADERS: Mapping[str, st.SearchStrategy[str]] = {
    "retry-after": st.one_of(st.floats(-1e3, 1e6).map(str), st.text(max_size=20)),
    "x-ratelimit-remaining": st.one_of(st.integers(-5, 9000).map(str), st.text(max_size=5)),
    "x-ratelimit-reset": st.one_of(st.floats(NOW - 1e5, NOW + 1e9).map(str), st.text(max_size=12)),
    "ratelimit-remaining": st.integers(-5, 9000).map(str),
    "ratelimit-reset": st.floats(NOW - 1e5, NOW + 1e9).map(str),
}
ANSWERS = st.builds(
    ForgeAnswer,
    status=st.sampled_from([200, 201, 304, 400, 401, 403, 404, 422, 429, 500, 502, 503]),
    headers=st.fixed_dictionaries({}, optional=HEADERS),
    detail=st.sampled_from(["", "secondary rate limit", "Not Found"]),
)


@UNHURRIED
@given(answers=st.lists(st.tuples(ANSWERS, st.floats(-3600.0, 3600.0)), max_size=30))
def test_we_wait_at_most_an_hour_for_any_answer_of_a_forge(answers: list[tuple[ForgeAnswer, float]]) -> None:
    limits, now = NONE, NOW
    for one, pause in answers:
        now += pause  # clocks are set back, too
        limits = called(answered(limits, one, reserve=8, now=now), PACE, now)
        assert next_call_at(limits, PACE, now) <= now + LONGEST_SECONDS


@UNHURRIED
@given(first=ANSWERS, second=ANSWERS)
def test_no_answer_shortens_a_wait_of_an_earlier_one(first: ForgeAnswer, second: ForgeAnswer) -> None:
    before = answered(NONE, first, reserve=8, now=NOW)
    assert answered(before, second, reserve=8, now=NOW).not_before >= before.not_before
