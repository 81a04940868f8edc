"""The circuit breaker of git hosts."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.git.hosts import (
    ANSWERED_SECONDS,
    LONGEST_SECONDS,
    PLACES_OF_SLOW,
    PLACES_OF_UNKNOWN,
    SLOW_SECONDS,
    Circuit,
    GitHosts,
    after_answer,
    after_failure,
    host_of,
    open_seconds,
    places,
)
from tests.stores import Clock

BAD, GOOD = "https://bad.example/a.git", "https://good.example/b.git"


def hosts() -> tuple[GitHosts, Clock]:
    clock = Clock(now=1000.0)
    return GitHosts(clock=clock, chance=lambda: 1.0), clock


def test_a_host_that_fails_is_left_alone_alone_and_asked_by_one_until_it_answers() -> None:
    known, clock = hosts()
    known.failed(BAD, "no route")
    assert known.held(BAD) == "git host bad.example does not answer; next try in 2 s"
    assert known.held(GOOD) is None
    clock.forward(2.0)
    assert known.held(BAD) is None
    with known.visit(BAD):
        assert known.held(BAD) is not None
        known.failed(BAD, "no route")
    assert known.held(BAD) == "git host bad.example does not answer; next try in 4 s"
    clock.forward(4.0)
    with known.visit(BAD):
        known.answered(BAD)
        assert known.held(BAD) is None


def test_a_silent_host_gets_few_places_before_anybody_has_failed() -> None:
    assert places(Circuit(), None, 0.0) == PLACES_OF_UNKNOWN
    assert places(Circuit(), 0.0, SLOW_SECONDS + 1) == PLACES_OF_SLOW
    assert places(after_answer(5.0), 1.0, 6.0) is None
    assert places(after_answer(5.0), 6.0, 9.0) == PLACES_OF_SLOW


def test_a_repository_that_fails_on_a_host_that_answers_is_left_alone_itself() -> None:
    known, clock = hosts()
    known.answered("https://good.example/other.git")
    known.failed(GOOD, "500")
    assert known.held(GOOD) is not None
    assert known.held("https://good.example/other.git") is None
    clock.forward(ANSWERED_SECONDS)
    assert known.held(GOOD) is None


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
            assert places(circuit, None, now) is None
        elif now < before.open_until:
            assert circuit == before
        else:
            assert circuit.failures == before.failures + 1
            assert places(circuit, None, now) == 0
            assert places(circuit, None, circuit.open_until) == 1
