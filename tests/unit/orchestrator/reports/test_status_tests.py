"""A status says how many tests failed, and which, within limits."""

import pytest

from solstice_common.messages import MAX_FAILED_TESTS, MAX_TEST_MESSAGE, MAX_TEST_NAME, TestCountsV1
from solstice_orchestrator.domain.statuses import Status, encode_status
from solstice_orchestrator.reports.status_tests import MAX_STATUS_CHARACTERS, described, status_tests
from solstice_orchestrator.reports.values import CaseCounts, JobReport, TestCaseResult, TestState


def report_of(count: int, text: str) -> JobReport:
    test = TestCaseResult(
        name=text[:500], state=TestState.FAILED, message=text[:2000], file=text[:500], line=1
    )
    return JobReport(counts=CaseCounts(failed=count), failed=(test,) * count)


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, "a"), (200, "a"), (200, "\U0001f600" * 2000)])
def test_failed_tests_of_a_status_are_bounded(count: int, text: str) -> None:
    tests = status_tests(report_of(count, text))
    assert (tests.failed, len(tests.failures) <= MAX_FAILED_TESTS) == (count, True)
    assert (
        sum(len(each.name) + len(each.message) + len(each.file) for each in tests.failures)
        <= MAX_STATUS_CHARACTERS
    )
    for each in tests.failures:
        assert (len(each.name) <= MAX_TEST_NAME, len(each.message) <= MAX_TEST_MESSAGE) == (True, True)
        assert len(each.file) <= MAX_TEST_NAME
    body = encode_status(
        Status(
            commit_sha="c",
            repo_url="u",
            request_id="r",
            schema_version="jobstatus.v1",
            source="s",
            tests=tests,
        )
    )
    assert len(body) < 64 * 1024
    read = TestCountsV1.model_validate_json(body[body.index(b'"tests":') + 8 : -1])
    assert len(read.failures) == len(tests.failures)


@pytest.mark.parametrize(
    ("counts", "succeeded", "words"),
    [
        (CaseCounts(passed=2), True, "Succeeded: 2 tests passed"),
        (CaseCounts(passed=1, skipped=1), True, "Succeeded: 2 tests passed, 1 skipped"),
        (CaseCounts(passed=1, failed=1, errored=1), False, "2 of 3 tests failed. Succeeded"),
        (CaseCounts(passed=1), False, "Succeeded"),
    ],
)
def test_a_description_begins_with_failures(counts: CaseCounts, succeeded: bool, words: str) -> None:
    assert described(status_tests(JobReport(counts=counts)), "Succeeded", succeeded=succeeded) == words
