"""Owners of repositories, and quotas of starts per hour: never more, seldom fewer.

Fewer for at most a minute.
"""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.caps import Caps, parse_caps
from solstice_orchestrator.scheduling.quotas import (
    HOUR,
    MINUTE,
    OwnerStarts,
    Quotas,
    counts_until,
    owner_of,
    running_of,
    seconds_until,
    startable,
    started,
)

NOW = 1_800_000_000.0
"""A full minute."""

visits = st.lists(st.tuples(st.floats(0, 2000), st.integers(0, 12)), min_size=1, max_size=60)
"""The time since the previous claim, and the number of waiting jobs."""


def flood(quota: int, visitors: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """How many jobs start at each claim."""
    before, now, begun = list[OwnerStarts](), NOW, []
    for pause, waiting in visitors:
        now += pause
        count = min(waiting, max(0, quota - started(before, now)))
        before.append(OwnerStarts(counts_until(now), count))
        begun.append((now, count))
    return begun


@pytest.mark.parametrize(
    ("repository", "owner"),
    [
        ("acme/app", "acme"),
        ("Acme/App", "Acme"),
        ("acme/tools/deep/app", "acme"),
        ("app", ""),
        ("/app", ""),
        ("https://forge.example/acme/app.git", "acme"),
        ("https://forge.example/acme/tools/app", "acme"),
        ("ssh://git@forge.example:2222/acme/app.git", "acme"),
        ("git://forge.example/app.git", ""),
        ("https://forge.example", ""),
        ("https://forge.example//app/x", ""),
        ("file:///srv/acme/app.git", ""),
        ("FILE:///srv/acme/app.git", ""),
    ],
)
def test_the_owner_is_what_stands_before_the_first_slash(repository: str, owner: str) -> None:
    assert owner_of(repository) == owner


def test_what_runs_of_an_owner_is_what_runs_of_its_repositories() -> None:
    assert running_of({"acme/app": 3, "acme/docs": 1, "reef/tide": 2, "app": 9}) == {"acme": 4, "reef": 2}


@pytest.mark.parametrize(
    ("quotas", "owner", "bound"),
    [
        (Quotas(), "acme", False),
        (Quotas(slots=parse_caps("acme=2")), "acme", True),
        (Quotas(slots=parse_caps("acme=2")), "reef", False),
        (Quotas(starts_per_hour=Caps(default=5)), "reef", True),
        (Quotas(starts_per_hour=Caps(default=5)), "", False),
    ],
)
def test_bound_owners_are_those_with_a_quota(quotas: Quotas, owner: str, bound: bool) -> None:
    assert quotas.bound(owner) is bound


@pytest.mark.parametrize(
    ("at", "until"),
    [(NOW, NOW + HOUR), (NOW + 0.5, NOW + HOUR + 60), (NOW + 59.9, NOW + HOUR + 60)],
    ids=["on the minute", "just after", "just before the next"],
)
def test_a_start_counts_for_an_hour_and_to_the_next_full_minute(at: float, until: float) -> None:
    assert counts_until(at) == until
    assert started([OwnerStarts(until, 1)], math.nextafter(until, 0)) == 1
    assert started([OwnerStarts(until, 1)], until) == 0


BEFORE = [OwnerStarts(NOW + 120, 3), OwnerStarts(NOW + 60, 2), OwnerStarts(NOW - 60, 50)]


@pytest.mark.parametrize(
    ("quota", "starts", "seconds"),
    [
        pytest.param(6, 1, 0, id="one is left"),
        pytest.param(5, 1, 60, id="when the first of them count no more"),
        pytest.param(5, 2, 60, id="two of them at once"),
        pytest.param(5, 3, 120, id="then the others"),
        pytest.param(2, 1, 120, id="a quota that was lowered"),
        pytest.param(5, 6, 60 + HOUR, id="one more than a whole quota"),
        pytest.param(0, 1, math.inf, id="nothing may ever start"),
    ],
)
def test_how_long_it_takes_until_so_many_may_have_started(quota: int, starts: int, seconds: float) -> None:
    assert seconds_until(BEFORE, quota, NOW, starts) == seconds


@given(st.integers(1, 20), visits)
def test_never_more_than_the_quota_in_any_hour(quota: int, visitors: list[tuple[float, int]]) -> None:
    begun = flood(quota, visitors)
    for end, _ in begun:
        assert sum(count for at, count in begun if end - HOUR < at <= end) <= quota


@pytest.mark.parametrize(
    ("starts", "seconds", "more"),
    [
        (2, 0.0, 1),
        (2, 1799.0, 1),
        (2, 1800.0, 3),
        (2, 3600.0, 4),
        (2, 5400.0, 6),
        (5, 0.0, 0),
        (5, 3600.0, 3),
    ],
)
def test_as_many_may_start_as_the_quota_has_left_and_again_each_hour(
    starts: int, seconds: float, more: int
) -> None:
    assert startable([OwnerStarts(1800.0, starts)], 3, 0.0, seconds) == more


@given(st.integers(1, 20), visits)
def test_jobs_wait_only_when_the_last_hour_and_a_minute_had_the_whole_quota(
    quota: int, visitors: list[tuple[float, int]]
) -> None:
    begun = flood(quota, visitors)
    for number, ((now, count), (_, waiting)) in enumerate(zip(begun, visitors, strict=True)):
        before = sum(each for at, each in begun[:number] if at > now - HOUR - MINUTE)
        assert count == waiting or before + count >= quota


@given(st.integers(1, 20), visits, st.integers(1, 60))
def test_a_run_that_is_due_on_arrival_starts_at_once(
    quota: int, visitors: list[tuple[float, int]], starts: int
) -> None:
    before = [OwnerStarts(counts_until(at), count) for at, count in flood(quota, visitors)]
    now, left = NOW + sum(pause for pause, _ in visitors), starts
    reported = now + seconds_until(before, quota, now, starts)
    while left:
        now += seconds_until(before, quota, now)
        count = min(left, quota - started(before, now))
        assert count > 0
        left -= count
        before.append(OwnerStarts(counts_until(now), count))
    # What starts on the way counts to a full minute, too.
    assert reported <= now <= reported + MINUTE * (starts // quota + 1)


@given(visits)
def test_few_numbers_are_kept_however_many_start(visitors: list[tuple[float, int]]) -> None:
    begun = flood(10**6, visitors)
    last = begun[-1][0]
    stored = {counts_until(at) for at, _ in begun if counts_until(at) > last}
    assert len(stored) <= 61
