"""The text of a commit status about a waiting job."""

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import Forecast
from solstice_orchestrator.queue_times.status_texts import waiting_text
from solstice_orchestrator.queue_times.waits import COUNTED, WaitExplanation, WaitFacts, WaitReason

NOW = 1_790_000_000.0
FACTS = WaitFacts(
    now=NOW, run_id="r", state=JobState.WAITING, repository="harbour/app", since=NOW, runs_on="linux"
)


@pytest.mark.parametrize(
    ("reason", "ahead", "starts_in", "words"),
    [
        (WaitReason.SLOTS_BUSY, 2, None, "waiting: 2 ahead on linux"),
        (WaitReason.SLOTS_BUSY, 0, None, "waiting: next on linux"),
        (WaitReason.SLOTS_BUSY, 9, 0.0, "waiting: 9 ahead on linux, starts within about 1 min"),
        (WaitReason.SLOTS_BUSY, 10, 240.0, "waiting: more than 10 ahead on linux, starts within about 5 min"),
        (WaitReason.SLOTS_BUSY, 499, 5400.0, "waiting: more than 200 ahead on linux, starts within about 90 min"),
        (WaitReason.SLOTS_BUSY, COUNTED, 7201.0, "waiting: more than 1000 ahead on linux, starts within about 3 h"),
        (WaitReason.SLOTS_BUSY, 1, 10800.0, "waiting: 1 ahead on linux, starts within about 3 h"),
        (WaitReason.SLOTS_BUSY, 20, -5.0, "waiting: more than 20 ahead on linux, starts within about 1 min"),
        (WaitReason.REPOSITORY_CAP, 1, None, "waiting: its repository runs as many jobs as it may, 1 ahead"),
        (WaitReason.OWNER_CAP, 0, 90.0, "waiting: its owner runs as many jobs as it may, next, starts within about 2 min"),
        (WaitReason.OWNER_CAP, 2, None, "waiting: its owner runs as many jobs as it may, 2 ahead"),
        (WaitReason.NO_WORKER_FOR_LABEL, 3, None, "waiting: no worker serves linux"),
        (WaitReason.PAUSED, 3, None, "waiting: the workers of linux take no jobs now"),
        (WaitReason.RATE_LIMITED, 3, 30.0, "waiting: 3 ahead on linux, as fast as they may start, starts within about 1 min"),
        (WaitReason.GOVERNOR, 3, None, "waiting: governor(disk) on the workers of linux"),
        (WaitReason.CONCURRENCY_GROUP, 3, None, "waiting: concurrency group"),
    ],
)  # fmt: skip
def test_a_waiting_job_says_why_and_how_long(
    reason: WaitReason, ahead: int, starts_in: float | None, words: str
) -> None:
    start = None if starts_in is None else Forecast(earliest=NOW, latest=NOW + starts_in)
    why = WaitExplanation(
        reason=reason, detail="", since=NOW, ahead=ahead, expected_start=start, resource="disk"
    )
    assert waiting_text(FACTS, why) == words
    assert len(words) <= 140


def test_who_has_started_as_many_as_it_may_is_named() -> None:
    why = WaitExplanation(reason=WaitReason.RATE_LIMITED, detail="", since=NOW, ahead=3, resource="owner")
    assert waiting_text(FACTS, why) == "waiting: 3 ahead on linux, its owner has started as many as it may"


def test_a_full_system_is_reported() -> None:
    start = Forecast(earliest=NOW, latest=NOW + 60)
    why = WaitExplanation(reason=WaitReason.SLOTS_BUSY, detail="", since=NOW, ahead=2, expected_start=start)
    words = waiting_text(FACTS, why, saturated=True)
    assert words == "waiting: 2 ahead on linux (the system is full), starts within about 1 min"
