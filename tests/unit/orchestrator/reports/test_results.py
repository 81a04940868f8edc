"""The result of each test is found by its name."""

from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_orchestrator.reports.results import (
    TestResult,
    digest_of,
    digests_in,
    encode_results,
    find_result,
    merged_results,
)
from solstice_orchestrator.reports.values import BAD, TestCaseResult, TestState

RUN = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(list(TestState)))
WORST = (TestState.PASSED, TestState.SKIPPED, TestState.FAILED, TestState.ERRORED)


def cases_of(runs: list[tuple[str, TestState]]) -> list[TestCaseResult]:
    return [TestCaseResult(name=name, state=state, seconds=0.25) for name, state in runs]


@settings(max_examples=60)
@given(st.lists(RUN, max_size=30), st.lists(RUN, max_size=30))
def test_results_are_those_of_a_plain_table(
    one: list[tuple[str, TestState]], other: list[tuple[str, TestState]]
) -> None:
    encoded = merged_results([encode_results(cases_of(one)), encode_results(cases_of(other))])
    assert encode_results(cases_of([*one, *other])) == encoded
    known: dict[str, list[TestState]] = {}
    for name, state in [*one, *other]:
        known.setdefault(name, []).append(state)
    assert list(digests_in(encoded)) == sorted(map(digest_of, known))
    flaky = {name for name, states in known.items() if TestState.PASSED in states and BAD & set(states)}
    for name in "abcdefghi":
        states = known.get(name)
        expected = (
            None
            if states is None
            else TestResult(max(states, key=WORST.index), 0.25 * len(states), name in flaky)
        )
        assert find_result(encoded, digest_of(name)) == expected


def test_a_state_of_a_newer_version_is_not_guessed() -> None:
    encoded = bytearray(encode_results(cases_of([("a", TestState.PASSED)])))
    encoded[8] = 9
    assert find_result(bytes(encoded), digest_of("a")) is None
