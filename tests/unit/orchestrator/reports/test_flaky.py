"""A test is flaky when it passed and failed on one commit, in one job."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from solstice_orchestrator.reports.flaky import AttemptReport, compared_attempts, flaky_tests, passed_in
from solstice_orchestrator.reports.results import encode_results
from solstice_orchestrator.reports.values import BAD, CaseCounts, JobReport, TestCaseResult, TestState

GOOD: Final = TestState.PASSED
Results = dict[str, TestState]


def attempt_of(number: int, job: str, commit: str, results: Results) -> AttemptReport:
    tests = [TestCaseResult(name=name, state=state, message="no") for name, state in results.items()]
    return AttemptReport(
        run_id=f"run-{number}",
        job_id=f"job-{number}",
        job=job,
        attempt=1,
        commit_sha=commit,
        created_at=float(number),
        report=JobReport(
            counts=CaseCounts(),
            failed=tuple(test for test in tests if test.state in BAD),
            results=encode_results(tests),
        ),
    )


def flaky_of(*attempts: AttemptReport) -> list[tuple[str, str, int, int]]:
    results = {(each.job_id, each.attempt): each.report.results for each in attempts}
    passed = {key: passed_in(results[key], digests) for key, digests in compared_attempts(attempts).items()}
    return [(test.name, test.job, test.failures, test.commits) for test in flaky_tests(attempts, passed)]


def test_a_test_that_failed_and_passed_on_one_commit_is_flaky() -> None:
    bad = TestState.FAILED
    assert flaky_of(attempt_of(1, "test", "a", {"x": bad}), attempt_of(2, "test", "a", {"x": GOOD})) == [
        ("x", "test", 1, 1)
    ]
    assert flaky_of(attempt_of(1, "test", "a", {"x": bad}), attempt_of(2, "test", "b", {"x": GOOD})) == []
    assert flaky_of(attempt_of(1, "py3.11", "a", {"x": bad}), attempt_of(2, "py3.12", "a", {"x": GOOD})) == []


def test_a_test_that_a_tool_tried_again_is_flaky_by_itself() -> None:
    again = TestCaseResult(name="x", flaky=True)
    attempt = attempt_of(1, "test", "a", {})
    report = JobReport(flaky=(again,), results=encode_results([again]))
    (found,) = flaky_tests([structs.replace(attempt, report=report)], {})
    assert (found.name, found.failures, found.run_id) == ("x", 1, "run-1")


ATTEMPTS = st.lists(
    st.tuples(
        st.sampled_from(["lint", "test"]),
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from("xyz"), st.sampled_from(list(TestState)), max_size=3),
    ),
    max_size=8,
)


@given(ATTEMPTS)
def test_flaky_tests_are_those_of_a_plain_model(given_attempts: list[tuple[str, str, Results]]) -> None:
    attempts = [attempt_of(number, *each) for number, each in enumerate(given_attempts)]
    seen: dict[tuple[str, str, str], list[TestState]] = {}
    for job, commit, results in given_attempts:
        for name, state in results.items():
            seen.setdefault((job, commit, name), []).append(state)
    expected: dict[tuple[str, str], list[int]] = {}
    for (job, _, name), states in seen.items():
        if GOOD in states and BAD & set(states):
            expected.setdefault((name, job), []).append(sum(state in BAD for state in states))
    assert sorted(flaky_of(*attempts)) == sorted(
        (name, job, sum(failures), len(failures)) for (name, job), failures in expected.items()
    )
