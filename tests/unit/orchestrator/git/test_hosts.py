"""The circuit breaker of git hosts."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.git.hosts import (
    ANSWERED_SECONDS,
    LONGEST_SECONDS,
    MAX_HOSTS,
    SLOW_SECONDS,
    VISITS_OF_SLOW_HOST,
    VISITS_OF_UNKNOWN_HOST,
    Circuit,
    GitHosts,
    after_answer,
    after_failure,
    allowed_visits,
    host_of,
    open_seconds,
)
from solstice_orchestrator.git.visits import (
    SILENT_ALONE_SECONDS,
    SILENT_SECONDS,
    Visit,
    gives_way,
    is_silent,
    may_begin,
    share,
)
from tests.stores import ManualClock

BAD, WORSE, GOOD = "https://bad.example/a.git", "https://bad.example/c.git", "https://good.example/b.git"


def hosts() -> tuple[GitHosts, ManualClock]:
    clock = ManualClock(now=1000.0)
    return GitHosts(clock=clock, chance=lambda: 1.0), clock


def test_a_host_that_fails_is_left_alone_alone_and_asked_by_one_until_it_answers() -> None:
    known, clock = hosts()
    known.failed(WORSE, "no route", host_away=True)
    known.failed(BAD, "no route", host_away=True)
    assert known.pause_of(BAD) == "git host bad.example does not answer; next try in 2 s"
    assert known.pause_of(GOOD) is None
    clock.forward(2.0)
    assert known.pause_of(BAD) is None
    with known.visit(BAD):
        assert known.pause_of(BAD) is not None
        known.failed(BAD, "no route", host_away=True)
    assert known.pause_of(BAD) == "git host bad.example does not answer; next try in 4 s"
    clock.forward(4.0)
    with known.visit(BAD):
        known.answered(BAD)
        assert known.pause_of(BAD) is None


def test_one_repository_cannot_stop_its_host() -> None:
    known, clock = hosts()
    for _ in range(5):
        known.failed(BAD, "redirect", host_away=True)
        assert known.pause_of(WORSE) is None
        paused = known.pause_of(BAD)
        assert paused is not None
        assert paused.startswith(f"{BAD} cannot be fetched from; next try in ")
        clock.forward(LONGEST_SECONDS)
    with known.visit(WORSE):
        known.answered(WORSE)
    clock.forward(ANSWERED_SECONDS)
    known.failed(WORSE, "no route", host_away=True)
    assert known.pause_of(GOOD.replace("good", "bad")) is None
    known.failed(BAD, "no route", host_away=True)
    assert (
        known.pause_of(GOOD.replace("good", "bad")) == "git host bad.example does not answer; next try in 2 s"
    )


def test_failures_that_are_answers_open_no_circuit_of_the_host() -> None:
    known, clock = hosts()
    urls = [f"https://bad.example/{number}.git" for number in range(5)]
    for url in urls:
        known.failed(url, "redirect", host_away=False)
        assert known.pause_of(url) == f"{url} cannot be fetched from; next try in 2 s"
        assert known.pause_of(WORSE) is None
    clock.forward(2.0)
    known.failed(urls[0], "redirect", host_away=False)
    assert known.pause_of(urls[0]) == f"{urls[0]} cannot be fetched from; next try in 4 s"
    assert known.pause_of(urls[1]) is None


def test_a_failure_that_is_an_answer_closes_the_circuit_of_its_host() -> None:
    known, clock = hosts()
    known.failed(WORSE, "no route", host_away=True)
    known.failed(BAD, "no route", host_away=True)
    assert known.circuits["bad.example"].failures == 1
    clock.forward(2.0)
    known.failed(BAD, "404", host_away=False)
    assert known.circuits["bad.example"] == Circuit(answered_at=clock.now, suspect=BAD)
    assert known.circuits[BAD].failures == 1


def test_a_file_has_no_host_and_its_failure_is_its_own() -> None:
    known, _ = hosts()
    known.failed("file:///srv/a", "not there", host_away=False)
    assert known.pause_of("file:///srv/a") is not None
    assert known.pause_of("file:///srv/b") is None


def test_failing_repositories_without_number_take_no_memory_without_bound() -> None:
    known, _ = hosts()
    for number in range(2 * MAX_HOSTS):
        known.failed(f"https://bad.example/{number}.git", "redirect", host_away=False)
    assert len(known.circuits) == MAX_HOSTS
    assert known.circuits["bad.example"].failures == 0
    assert f"https://bad.example/{2 * MAX_HOSTS - 1}.git" in known.circuits


def test_a_silent_host_gets_few_places_before_the_first_failure() -> None:
    assert allowed_visits(Circuit(), None, 0.0) == VISITS_OF_UNKNOWN_HOST
    assert allowed_visits(Circuit(), 0.0, SLOW_SECONDS + 1) == VISITS_OF_SLOW_HOST
    assert allowed_visits(after_answer(5.0), 1.0, 6.0) is None
    assert allowed_visits(after_answer(5.0), 6.0, 9.0) == VISITS_OF_SLOW_HOST


def test_a_repository_that_fails_on_a_host_that_answers_is_left_alone_itself() -> None:
    known, clock = hosts()
    known.answered("https://good.example/other.git")
    known.failed(GOOD, "500", host_away=True)
    assert known.pause_of(GOOD) is not None
    assert known.pause_of("https://good.example/other.git") is None
    clock.forward(ANSWERED_SECONDS)
    assert known.pause_of(GOOD) is None


def test_hosts_of_urls() -> None:
    urls = ["https://u:p@Forge.example:8443/a", "ssh://git@forge.example/a", "file:///srv/a", "https://[::1"]
    assert [host_of(url) for url in urls] == [
        "forge.example:8443",
        "forge.example",
        "file:///srv/a",
        "https://[::1",
    ]


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_a_host_is_always_asked_again_at_last(failures: int, chance: float) -> None:
    assert 1.0 <= open_seconds(failures, chance) <= LONGEST_SECONDS


@given(st.lists(st.tuples(st.floats(0, 300), st.booleans()), max_size=50))
def test_a_circuit_opens_with_each_failure_after_its_time_and_closes_with_any_answer(
    story: list[tuple[float, bool]],
) -> None:
    circuit, now = Circuit(), 1.0
    for pause, answers in story:
        now += pause
        before = circuit
        circuit = after_answer(now) if answers else after_failure(circuit, now, 0.5)
        if answers:
            assert allowed_visits(circuit, None, now) is None
        elif now < before.open_until:
            assert circuit == before
        else:
            assert circuit.failures == before.failures + 1
            assert allowed_visits(circuit, None, now) == 0
            assert allowed_visits(circuit, None, circuit.open_until) == 1


def checkout(host: str = "bad.example", begun: float = 0.0, *, holds_slot: bool = True) -> Visit:
    return Visit(host=host, begun=begun, holds_slot=holds_slot)


@pytest.mark.parametrize(("slots", "silent_share"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (64, 32)])
def test_silent_checkouts_hold_half_of_the_slots_and_one_at_least(slots: int, silent_share: int) -> None:
    assert share(slots) == silent_share


@pytest.mark.parametrize(
    ("has_answered", "answered_at", "now", "silent"),
    [
        (False, None, SILENT_SECONDS - 0.1, False),
        (False, None, SILENT_SECONDS, True),
        (False, 9.0, 10.0 + SILENT_SECONDS, True),
        (False, 10.0, 10.0 + SILENT_SECONDS, False),
        (False, 11.0, 10.0 + SILENT_ALONE_SECONDS - 0.1, False),
        (False, 11.0, 10.0 + SILENT_ALONE_SECONDS, True),
        (True, None, 10.0 + SILENT_ALONE_SECONDS, False),
    ],
)
def test_when_a_checkout_counts_as_silent(
    has_answered: bool, answered_at: float | None, now: float, silent: bool
) -> None:
    begun = 0.0 if answered_at is None and not has_answered else 10.0
    visit = Visit(host="bad.example", begun=begun, holds_slot=True, answered=has_answered)
    assert is_silent(visit, answered_at, now) is silent


def test_the_youngest_silent_checkouts_give_way_for_any_hosts() -> None:
    first, second, third = checkout("a", 1), checkout("b", 2), checkout("c", 3)
    planning = checkout("d", 0, holds_slot=False)
    silent = [third, planning, first, second]
    assert [gives_way(each, silent, 4) for each in (first, second, third)] == [False, False, True]
    assert [gives_way(each, silent, 1) for each in (first, second, third)] == [False, True, True]
    assert not gives_way(planning, silent, 1)
    assert not gives_way(checkout("a", 9), silent, 1)


def test_no_checkout_begins_at_a_silent_host_once_the_share_is_held() -> None:
    silent, young = checkout("a", 1), checkout("a", 8)
    assert may_begin("a", [silent], [silent], 4)
    assert not may_begin("a", [silent, young], [silent], 4)
    assert not may_begin("a", [silent], [silent], 2)
    assert may_begin("b", [silent, young], [silent], 2)
    assert not may_begin("a", [silent, other := checkout("c", 2)], [silent, other], 4)
    assert may_begin("a", [planning := checkout("a", holds_slot=False)], [planning], 2)


def test_a_host_that_answered_and_goes_silent_gives_slots_back() -> None:
    clock = ManualClock(now=1000.0)
    known = GitHosts(clock=clock, chance=lambda: 1.0, slots=4)
    known.answered(BAD)
    clock.forward(60.0)
    visits = []
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            assert known.pause_of(BAD, holds_slot=True) is None
            visits.append(stack.enter_context(known.visit(BAD, holds_slot=True)))
        clock.forward(SILENT_SECONDS - 1)
        assert [known.gives_way(each) for each in visits] == [None] * 4
        clock.forward(1)
        assert [known.gives_way(each) is None for each in visits] == [True, True, False, False]
        assert known.gives_way(visits[3]) == (
            "git host bad.example has not answered for 5 s, and others wait for slots"
        )
        assert known.pause_of(BAD, holds_slot=True) is not None
        assert known.pause_of(GOOD, holds_slot=True) is None
        known.answered(BAD)
        assert [known.gives_way(each) for each in visits] == [None] * 4
        assert known.pause_of(BAD, holds_slot=True) is None


def test_files_of_this_machine_are_never_silent() -> None:
    clock = ManualClock(now=1000.0)
    known = GitHosts(clock=clock, slots=1)
    with known.visit("file:///srv/a", holds_slot=True), known.visit("file:///srv/a", holds_slot=True) as late:
        clock.forward(SILENT_ALONE_SECONDS)
        assert known.gives_way(late) is None
