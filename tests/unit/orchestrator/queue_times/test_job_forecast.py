"""The expected start and end of a job under all its waits."""

from dataclasses import replace

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import Forecast, Sample
from solstice_orchestrator.queue_times.job_forecast import (
    bounds,
    forecast_end,
    forecast_start,
    later_forecast,
)
from solstice_orchestrator.queue_times.waits import COUNTED, Holder, OwnerStartsOfHour, UnmetNeed, WaitFacts
from solstice_orchestrator.scheduling.quotas import OwnerStarts
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, Rate, Throttle
from solstice_orchestrator.scheduling.workers import Presence, WorkerState, WorkerView

NOW = 1000.0
RATE = Rate(text="6/m:1", per_second=0.1, burst=1)
ONE_SLOT = WorkerView(
    worker_id="w",
    name="quay",
    host="quay.example",
    version="1",
    slots={"linux": 1},
    limit=1,
    state=WorkerState.ACTIVE,
    presence=Presence.ALIVE,
    quarantined_until=None,
    failures_in_a_row=0,
    started_at=0.0,
    seen_at=NOW,
    jobs=(),
)
WAITING = WaitFacts(
    now=NOW,
    run_id="r",
    state=JobState.WAITING,
    repository="acme/app",
    since=NOW,
    runs_on="linux",
    owner="acme",
    workers=(ONE_SLOT,),
    recent=[Sample(repository="acme/app", seconds=60.0)] * 5,
)
"""A job with a free slot, whose like took a minute."""


def at(earliest: float, latest: float | None = None) -> Forecast:
    return Forecast(earliest=earliest, latest=earliest if latest is None else latest)


def running(since: float) -> WaitFacts:
    return replace(WAITING, state=JobState.RUNNING, started_at=since)


def need(facts: WaitFacts | None) -> UnmetNeed:
    return UnmetNeed(job_id="n", name="lint", state=JobState.RUNNING, facts=facts)


def test_a_job_with_a_free_slot_starts_now_and_ends_after_its_usual_time() -> None:
    assert forecast_start(WAITING) == at(NOW)
    assert forecast_end(WAITING) == at(1060.0)


def test_a_running_job_ends_when_its_usual_time_is_over() -> None:
    assert forecast_end(running(980.0)) == at(1040.0)


def test_a_running_job_that_lasts_longer_than_any_may_end_now() -> None:
    assert forecast_end(running(900.0)) == at(NOW, NOW + 200.0)


def test_a_start_ahead_of_the_clock_counts_as_now() -> None:
    assert forecast_end(running(1005.0)) == at(1060.0)


def test_the_end_is_unknown_without_recent_jobs_or_a_start() -> None:
    assert forecast_end(replace(running(980.0), recent=())) is None
    assert forecast_end(replace(WAITING, state=JobState.APPROVAL)) is None


def test_a_job_starts_when_the_last_of_its_needs_has_ended() -> None:
    blocked = replace(WAITING, state=JobState.BLOCKED)
    for needs in ([980.0, 990.0], [990.0, 980.0]):
        facts = replace(blocked, needs=[need(running(since)) for since in needs])
        assert forecast_start(facts) == at(1050.0)


def test_a_need_that_waits_itself_has_to_start_first() -> None:
    behind = replace(WAITING, workers=(), state=JobState.BLOCKED, needs=[need(running(980.0))])
    assert forecast_start(replace(WAITING, state=JobState.BLOCKED, needs=[need(behind)])) == at(1100.0)


def test_one_unknown_need_makes_the_start_unknown() -> None:
    facts = replace(WAITING, state=JobState.BLOCKED, needs=[need(running(980.0)), need(None)])
    assert forecast_start(facts) is None
    assert forecast_start(replace(WAITING, state=JobState.BLOCKED)) is None


@pytest.mark.parametrize(("members", "start"), [(1, 1040.0), (2, 1100.0), (3, 1160.0)])
def test_each_member_of_its_group_is_assumed_to_last_as_long_as_the_holder(
    members: int, start: float
) -> None:
    ahead = [Holder(run_id=str(number)) for number in range(members)]
    facts = replace(
        WAITING, state=JobState.BLOCKED, group="deploy", group_ahead=ahead, group_jobs=[running(980.0)]
    )
    assert forecast_start(facts) == at(start)


def test_a_holder_with_several_jobs_lasts_from_the_first_start_to_the_last_end() -> None:
    ahead = [Holder(run_id="1"), Holder(run_id="2")]
    facts = replace(
        WAITING,
        state=JobState.BLOCKED,
        group_ahead=ahead,
        group_jobs=[running(980.0), running(960.0), WAITING],
    )
    # From 960 to 1060, when the one that waits ends, and as long again.
    assert forecast_start(facts) == at(1160.0)
    assert forecast_start(replace(facts, group_jobs=[WAITING])) == at(1120.0)
    assert forecast_start(replace(facts, group_jobs=[running(980.0), None])) is None


@pytest.mark.parametrize(
    ("until", "start"),
    [
        pytest.param(1300.0, at(1300.0), id="then"),
        pytest.param(1010.0, at(1040.0), id="the slot is free later"),
        pytest.param(None, None, id="unknown"),
    ],
)
def test_a_backoff_ends_before_the_start(until: float | None, start: Forecast | None) -> None:
    holder = Holder(run_id="o", job_id="j", repository="acme/app", worker_id="w", started_at=980.0)
    busy = replace(ONE_SLOT, slots={}, limit=0)
    facts = replace(WAITING, state=JobState.BACKOFF, until=until, workers=(busy,), running=(holder,))
    assert forecast_start(facts) == start


def test_so_many_ahead_that_they_were_not_counted_make_it_unknown() -> None:
    assert forecast_start(replace(WAITING, ahead=COUNTED - 1)) is not None
    assert forecast_start(replace(WAITING, ahead=COUNTED)) is None


def test_a_holder_without_a_start_has_all_of_its_time_before_it() -> None:
    holder = Holder(run_id="o", repository="acme/app")
    facts = replace(WAITING, cap=1, running_of_repository=[holder])
    assert forecast_start(facts) == at(1060.0)
    ahead_of_the_clock = replace(holder, started_at=NOW + 5)
    assert forecast_start(replace(facts, running_of_repository=[ahead_of_the_clock])) == at(1060.0)


def test_a_holder_lasts_as_long_as_jobs_of_its_own_repository() -> None:
    slow = Sample(repository="acme/slow", seconds=600.0)
    holder = Holder(run_id="o", repository="acme/slow", started_at=NOW)
    facts = replace(WAITING, owner_cap=1, running_of_owner=[holder], recent=[*WAITING.recent, *[slow] * 5])
    assert forecast_start(facts) == at(NOW + 600.0)


def test_rates_count_those_ahead_that_they_limit_too() -> None:
    facts = replace(
        WAITING,
        ahead=4,
        ahead_of_repository=2,
        ahead_of_owner=1,
        throttles=[
            Throttle(key=BucketKey(BucketScope.LABEL, "linux"), rate=RATE, tokens=1.0),
            Throttle(key=BucketKey(BucketScope.REPOSITORY, "acme/app"), rate=RATE, tokens=1.0),
        ],
        owner_hour=OwnerStartsOfHour(quota=2, started=[OwnerStarts(1200.0, 1)]),
    )
    reported = [(each.resource, each.who, each.limit, each.seconds) for each in bounds(facts)]
    assert reported == [
        ("label", "the label linux", "6/m:1", 40.0),
        ("repository", "acme/app", "6/m:1", 20.0),
        ("owner", "acme", "2 in any hour", 200.0),
    ]
    assert bounds(WAITING) == []


def test_the_slowest_rate_delays_the_start() -> None:
    label = Throttle(key=BucketKey(BucketScope.LABEL, "linux"), rate=RATE, tokens=0.0)
    own = Throttle(key=BucketKey(BucketScope.REPOSITORY, "acme/app"), rate=RATE, tokens=-1.0)
    assert forecast_start(replace(WAITING, throttles=[label, own])) == at(1020.0)


def test_the_later_of_two_forecasts_is_later_in_both_ends() -> None:
    assert later_forecast(at(1.0, 9.0), at(3.0, 5.0)) == at(3.0, 9.0)
