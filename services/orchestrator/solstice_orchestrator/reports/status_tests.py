"""Say in a status what the test reports of a job counted. Pure."""

from typing import Final

from solstice_common.messages import MAX_FAILED_TESTS, MAX_TEST_MESSAGE, MAX_TEST_NAME
from solstice_common.values.quantities import quantity
from solstice_orchestrator.reports.values import JobReport, StatusTest, StatusTests

MAX_STATUS_CHARACTERS: Final = 12_000
"""Of all failed tests of a status together."""


def status_tests(report: JobReport) -> StatusTests:
    """Return what a status says about a report.

    Counts, and the first failed tests within limits.
    """
    counts, failures, room = report.counts, list[StatusTest](), MAX_STATUS_CHARACTERS
    for test in report.failed[:MAX_FAILED_TESTS]:
        failure = StatusTest(
            file=test.file if len(test.file) <= MAX_TEST_NAME else "",
            line=test.line,
            message=test.message[:MAX_TEST_MESSAGE],
            name=test.full_name[:MAX_TEST_NAME],
        )
        room -= len(failure.file) + len(failure.message) + len(failure.name)
        if room < 0:
            break
        failures.append(failure)
    return StatusTests(
        errored=counts.errored,
        failed=counts.failed,
        failures=tuple(failures),
        passed=counts.passed,
        skipped=counts.skipped,
    )


def described(tests: StatusTests, description: str, *, succeeded: bool) -> str:
    """Return the description of a status with its counts.

    Those of failures are in front, where forges do not cut it.
    """
    total = tests.passed + tests.failed + tests.errored + tests.skipped
    bad = tests.failed + tests.errored
    if bad:
        return f"{bad} of {quantity(total, 'test')} failed. {description}"
    skipped = f", {tests.skipped} skipped" if tests.skipped else ""
    return f"{description}: {quantity(total, 'test')} passed{skipped}" if succeeded else description
