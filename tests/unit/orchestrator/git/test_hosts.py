"""The circuit breaker of git hosts."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from solstice_orchestrator.git.hosts import (
    ANSWERED_SECONDS,
    LONGEST_SECONDS,
    MAX_CIRCUITS,
    SLOW_SECONDS,
    VISITS_OF_SLOW_HOST,
    VISITS_OF_UNKNOWN_HOST,
    VISITS_OF_UNPROVEN,
    Circuit,
    GitHosts,
    after_answer,
    after_failure,
    allowed_visits,
    failed_lately,
    host_of,
    is_proven,
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


def allowed(circuit: Circuit, oldest_since: float | None, now: float) -> int | None:
    """The visits of repositories that failed lately."""
    return allowed_visits(circuit, oldest_since, now, failed_lately=True)


def hosts() -> tuple[GitHosts, ManualClock]:
    clock = ManualClock(now=1000.0)
    return GitHosts(clock=clock, jitter=lambda: 1.0), clock


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
    assert known.circuits["https://bad.example"].failures == 0
    known.failed(BAD, "no route", host_away=True)
    assert known.circuits["https://bad.example"].failures == 1
    assert known.pause_of(BAD) == "git host bad.example does not answer; next try in 2 s"


def test_an_open_circuit_holds_back_only_repositories_that_failed_lately() -> None:
    known, clock = hosts()
    new, answering = "https://bad.example/new.git", "https://bad.example/answering.git"
    known.answered(answering)
    clock.forward(ANSWERED_SECONDS)
    known.failed(WORSE, "500", host_away=True)
    for _ in range(9):
        known.failed(BAD, "500", host_away=True)
        assert known.pause_of(BAD) is not None
        clock.forward(LONGEST_SECONDS)
    known.failed(BAD, "500", host_away=True)
    opened = known.circuits["https://bad.example"]
    assert opened.open_until == clock.now + LONGEST_SECONDS
    assert [known.pause_of(each) for each in (new, answering)] == [None, None]
    with contextlib.ExitStack() as visits:
        for number in range(3):
            visits.enter_context(known.visit(f"https://bad.example/{number}.git"))
        assert [known.pause_of(each) for each in (new, answering)] == [None, None]
    known.failed(new, "500", host_away=True)
    assert known.pause_of(new) is not None
    clock.forward(1.0)
    known.failed(BAD, "500", host_away=True)
    clock.forward(LONGEST_SECONDS - 1.1)
    assert known.pause_of(new) is not None
    clock.forward(0.1)
    assert known.pause_of(new) is None


def test_a_repository_is_proven_by_an_answer_and_not_soon_after_a_failure() -> None:
    answered = after_answer(Circuit(), 10.0)
    assert not is_proven(Circuit(), 10.0)
    assert is_proven(answered, 10.0)
    failed = after_failure(answered, 20.0, 1.0)
    assert failed_lately(failed, 20.0 + LONGEST_SECONDS - 0.1)
    assert not failed_lately(failed, 20.0 + LONGEST_SECONDS)
    assert not is_proven(failed, 20.0 + LONGEST_SECONDS)
    again = after_answer(failed, 30.0)
    assert failed_lately(again, 30.0)
    assert not is_proven(again, 20.0 + LONGEST_SECONDS - 0.1)
    assert is_proven(again, 20.0 + LONGEST_SECONDS)


def test_a_repository_whose_failure_counts_against_the_host_is_no_longer_proven() -> None:
    known, clock = hosts()
    known.answered(BAD)
    assert known.is_proven(BAD)
    clock.forward(ANSWERED_SECONDS)
    known.failed(WORSE, "500", host_away=True)
    known.failed(BAD, "500", host_away=True)
    assert known.circuits["https://bad.example"].failures == 1
    assert not known.is_proven(BAD)
    clock.forward(LONGEST_SECONDS)
    assert not known.is_proven(BAD)
    known.answered(BAD)
    assert known.is_proven(BAD)


def test_repositories_that_hang_leave_places_to_those_that_have_answered() -> None:
    known, clock = hosts()
    known.answered(BAD)
    clock.forward(1.0)
    with contextlib.ExitStack() as visits:
        for number in range(VISITS_OF_SLOW_HOST):
            visits.enter_context(known.visit(f"https://bad.example/{number}.git"))
        clock.forward(SLOW_SECONDS + 1)
        assert known.pause_of(WORSE) == "git host bad.example is slow to answer, and 4 ask it already"
        assert known.pause_of(WORSE, holds_slot=True) is None
        assert known.pause_of(BAD) is None


def test_repositories_that_hang_at_many_hosts_leave_places_for_planning() -> None:
    known, _ = hosts()
    known.answered(BAD)
    with contextlib.ExitStack() as visits:
        for number in range(VISITS_OF_UNPROVEN):
            assert known.pause_of(GOOD) is None
            visits.enter_context(known.visit(f"https://{number}.example/app.git"))
        assert known.pause_of(GOOD) == "48 repositories that have not answered yet are asked already"
        assert known.pause_of(GOOD, holds_slot=True) is None
        assert known.pause_of(BAD) is None


@pytest.mark.parametrize("other", ["http://bad.example/a.git", "ssh://git@bad.example/a.git"])
def test_each_protocol_of_a_host_has_its_own_circuit(other: str) -> None:
    known, clock = hosts()
    known.failed(WORSE, "no route", host_away=True)
    known.failed(BAD, "no route", host_away=True)
    clock.forward(1.0)
    known.failed(other, "no route", host_away=True)
    clock.forward(1.0)
    assert known.circuits["https://bad.example"].failures == 1
    assert known.pause_of(other) is not None
    known.answered(other)
    assert known.circuits["https://bad.example"].failures == 1


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
    assert known.circuits["https://bad.example"].failures == 1
    clock.forward(2.0)
    known.failed(BAD, "404", host_away=False)
    assert known.circuits["https://bad.example"] == Circuit(answered_at=clock.now, suspect=BAD)
    assert known.circuits[BAD].failures == 1


def test_a_file_has_no_host_and_its_failure_is_its_own() -> None:
    known, _ = hosts()
    known.failed("file:///srv/a", "not there", host_away=False)
    assert known.pause_of("file:///srv/a") is not None
    assert known.pause_of("file:///srv/b") is None


def test_failing_repositories_without_number_take_no_memory_without_bound() -> None:
    known, _ = hosts()
    for number in range(MAX_CIRCUITS + 9):
        known.failed(f"https://bad.example/{number}.git", "redirect", host_away=False)
    assert len(known.circuits) == MAX_CIRCUITS
    assert known.circuits["https://bad.example"].failures == 0
    assert f"https://bad.example/{MAX_CIRCUITS + 8}.git" in known.circuits


def test_a_silent_host_gets_few_places_before_the_first_failure() -> None:
    answered = after_answer(Circuit(), 5.0)
    assert allowed(Circuit(), None, 0.0) == VISITS_OF_UNKNOWN_HOST
    assert allowed(Circuit(), 0.0, SLOW_SECONDS) == VISITS_OF_UNKNOWN_HOST
    assert allowed(Circuit(), 0.0, SLOW_SECONDS + 1) == VISITS_OF_SLOW_HOST
    assert allowed(answered, 1.0, 6.0) is None
    assert allowed(answered, 5.0, 9.0) is None
    assert allowed(answered, 6.0, 9.0) == VISITS_OF_SLOW_HOST


def test_a_repository_that_fails_on_a_host_that_answers_is_left_alone_itself() -> None:
    known, clock = hosts()
    known.answered("https://good.example/other.git")
    known.failed(GOOD, "500", host_away=True)
    assert known.pause_of(GOOD) is not None
    assert known.pause_of("https://good.example/other.git") is None
    clock.forward(ANSWERED_SECONDS)
    assert known.pause_of(GOOD) is None


def test_the_log_says_when_a_host_fails_and_once_when_it_answers_again() -> None:
    known, clock = hosts()
    with capture_logs() as events:
        known.answered(GOOD)
        known.failed(WORSE, "no route", host_away=True)
        known.failed(BAD, "no route" + "!" * 999, host_away=True)
        known.failed(BAD, "no route", host_away=True)
        clock.forward(2.0)
        known.answered(BAD)
        known.answered(BAD)
    logged = [(event["event"], event["host"], event.get("failures")) for event in events]
    assert logged == [
        ("git_host.unreachable", WORSE, 1),
        ("git_host.unreachable", "bad.example", 1),
        ("git_host.answered", "bad.example", None),
    ]
    assert len(events[1]["detail"]) == 500
    assert events[1]["next_try_seconds"] == 2.0


def test_hosts_of_urls() -> None:
    urls = ["https://u:p@Forge.example:8443/a", "ssh://git@forge.example/a", "file:///srv/a", "https://[::1"]
    assert [host_of(url) for url in urls] == [
        "forge.example:8443",
        "forge.example",
        "file:///srv/a",
        "https://[::1",
    ]


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_a_host_is_always_asked_again_at_last(failures: int, jitter: float) -> None:
    assert 1.0 <= open_seconds(failures, jitter) <= LONGEST_SECONDS


@given(st.lists(st.tuples(st.floats(0, 300), st.booleans()), max_size=50))
def test_a_circuit_opens_with_each_failure_after_its_time_and_closes_with_any_answer(
    story: list[tuple[float, bool]],
) -> None:
    circuit, now = Circuit(), 1.0
    for pause, answers in story:
        now += pause
        before = circuit
        circuit = after_answer(circuit, now) if answers else after_failure(circuit, now, 0.5)
        if answers:
            assert allowed(circuit, None, now) is None
        elif now < before.open_until:
            assert circuit == before
        else:
            assert circuit.failures == before.failures + 1
            assert allowed(circuit, None, now) == 0
            assert allowed(circuit, None, circuit.open_until) == 1
            assert allowed_visits(circuit, None, now, failed_lately=False) == VISITS_OF_UNKNOWN_HOST


def checkout(
    endpoint: str = "a", begun: float = 0.0, *, holds_slot: bool = True, repository: str = "app"
) -> Visit:
    return Visit(
        url=f"{endpoint}/{repository}", endpoint=endpoint, begun=begun, holds_slot=holds_slot, proven=True
    )


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
    visit = Visit(url="a/app", endpoint="a", begun=begun, holds_slot=True, proven=True, answered=has_answered)
    assert is_silent(visit, answered_at, now) is silent


def test_the_youngest_silent_checkouts_give_way_for_any_hosts() -> None:
    first, second, third = checkout("a", 1), checkout("b", 2), checkout("c", 3)
    planning = checkout("d", 0, holds_slot=False)
    silent = [third, planning, first, second]
    assert [gives_way(each, silent, 4) for each in (first, second, third)] == [False, False, True]
    assert [gives_way(each, silent, 1) for each in (first, second, third)] == [False, True, True]
    assert not gives_way(planning, silent, 1)
    assert not gives_way(checkout("a", 9), silent, 1)


def begins(
    url: str, visits: list[Visit], silent: list[Visit], slots: int, *, answered_at: float | None = None
) -> bool:
    return may_begin(url, visits, silent, slots, endpoint=url.partition("/")[0], answered_at=answered_at)


def test_no_checkout_begins_at_a_silent_host_once_the_share_is_held() -> None:
    silent, young = checkout("a", 1), checkout("a", 8, repository="young")
    assert begins("a/app", [silent], [silent], 4)
    assert not begins("a/new", [silent, young], [silent], 4)
    assert not begins("a/app", [silent], [silent], 2)
    assert begins("b/app", [silent, young], [silent], 2)
    assert not begins("a/app", [silent, other := checkout("c", 2)], [silent, other], 4)
    assert begins("a/app", [planning := checkout("a", holds_slot=False)], [planning], 2)


def test_a_silent_checkout_lets_others_of_its_host_begin_one_at_a_time_until_the_host_answers() -> None:
    silent, young = checkout("a", 1), checkout("a", 8, repository="young")
    planning = checkout("a", 8, holds_slot=False, repository="young")
    elsewhere = checkout("b", 8, repository="young")
    assert begins("a/new", [silent], [silent], 2)
    assert begins("a/new", [silent, planning, elsewhere], [silent], 2)
    assert not begins("a/new", [silent, young], [silent], 2)
    assert not begins("a/new", [silent, young], [silent], 2, answered_at=0.9)
    assert begins("a/new", [silent, young], [silent], 2, answered_at=1)
    assert not begins("a/app", [silent, young], [silent], 2, answered_at=1)


def test_a_host_that_answered_and_goes_silent_gives_slots_back() -> None:
    clock = ManualClock(now=1000.0)
    known = GitHosts(clock=clock, jitter=lambda: 1.0, slots=4)
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
