"""Reduce all tests of an attempt to bounded values. Pure."""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from msgspec import structs

from solstice_orchestrator.reports.results import ResultsWriter, merged_results
from solstice_orchestrator.reports.values import (
    BAD,
    MAX_FAILED,
    MAX_FLAKY,
    MAX_MESSAGE,
    MAX_NAME,
    MAX_PROBLEMS,
    MAX_SHOWN,
    MAX_SLOWEST,
    RAW_MESSAGE,
    CaseCounts,
    JobReport,
    TestCaseResult,
    TestState,
)


class ReportReduction:
    """Takes one test after the other."""

    def __init__(self) -> None:
        self._states: Counter[TestState] = Counter()
        self._flaky: list[TestCaseResult] = []
        self._flaky_count = 0
        self._seconds = 0.0
        self._failed: list[TestCaseResult] = []
        self._shown = 0
        self._slowest: list[tuple[float, int, TestCaseResult]] = []
        self._order = count()
        self._problems: list[str] = []
        self._more_problems = 0
        self._results = ResultsWriter()

    def take(self, test: TestCaseResult) -> None:
        """Take a test."""
        self._states[test.state] += 1
        self._take_flaky(test)
        self._seconds += test.seconds
        self._results.add(test)
        if test.state in BAD and len(self._failed) < MAX_FAILED:
            self._shown += sum(map(len, (test.name, test.class_name, test.suite, test.message, test.file)))
            if self._shown <= MAX_SHOWN:
                self._failed.append(test)
        slow = (test.seconds, -next(self._order), test)
        if len(self._slowest) < MAX_SLOWEST:
            heapq.heappush(self._slowest, slow)
        elif slow > self._slowest[0]:
            heapq.heapreplace(self._slowest, slow)

    def _take_flaky(self, test: TestCaseResult) -> None:
        if test.flaky:
            self._flaky_count += 1
            if len(self._flaky) < MAX_FLAKY:
                self._flaky.append(test)

    def take_problem(self, words: str) -> None:
        """Take what could not be read."""
        if len(self._problems) < MAX_PROBLEMS - 1:
            self._problems.append(words[:MAX_NAME])
        else:
            self._more_problems += 1

    def report(self) -> JobReport:
        """Return what was taken so far."""
        problems = [*self._problems]
        if self._more_problems:
            problems.append(f"{self._more_problems} more of such problems")
        if self._results.left_out:
            problems.append(f"{self._results.left_out} tests are counted, and have no history")
        return JobReport(
            counts=CaseCounts(
                passed=self._states[TestState.PASSED],
                failed=self._states[TestState.FAILED],
                errored=self._states[TestState.ERRORED],
                skipped=self._states[TestState.SKIPPED],
                flaky=self._flaky_count,
                seconds=round(self._seconds, 3),
            ),
            failed=tuple(self._failed),
            flaky=tuple(self._flaky),
            slowest=tuple(each for _, _, each in sorted(self._slowest, reverse=True) if each.seconds > 0),
            problems=tuple(problems),
            results=self._results.encoded(),
        )


def joined(reports: Sequence[JobReport]) -> JobReport:
    """Return what several reports of one attempt say together."""
    counts = CaseCounts()
    for report in reports:
        counts = counts.plus(report.counts)
    slowest = sorted((each for report in reports for each in report.slowest), key=lambda each: -each.seconds)
    return JobReport(
        counts=counts,
        failed=tuple(each for report in reports for each in report.failed)[:MAX_FAILED],
        flaky=tuple(each for report in reports for each in report.flaky)[:MAX_FLAKY],
        slowest=tuple(slowest[:MAX_SLOWEST]),
        problems=tuple(each for report in reports for each in report.problems)[:MAX_PROBLEMS],
        results=merged_results([report.results for report in reports]),
    )


def problem_report(*problems: str) -> JobReport:
    """Return the report of an attempt of which nothing could be read."""
    return JobReport(problems=problems)


def masked_report(
    report: JobReport, masked: Callable[[str], str], masked_beginning: Callable[[str], str]
) -> JobReport:
    """Return a report without secrets.

    `masked_beginning` masks texts that were cut here: half of a secret may be at their ends.
    """

    def without(text: str, limit: int) -> str:
        known = (masked if len(text) < limit else masked_beginning)(text)
        return known.encode(errors="replace").decode()

    def each(test: TestCaseResult) -> TestCaseResult:
        return structs.replace(
            test,
            name=without(test.name, MAX_NAME),
            class_name=without(test.class_name, MAX_NAME),
            suite=without(test.suite, MAX_NAME),
            message=without(test.message, RAW_MESSAGE),
            file=without(test.file, MAX_NAME),
        )

    return structs.replace(
        report,
        failed=tuple(map(each, report.failed)),
        flaky=tuple(map(each, report.flaky)),
        slowest=tuple(map(each, report.slowest)),
        problems=tuple(without(problem, MAX_NAME) for problem in report.problems),
    )


def bounded(report: JobReport) -> JobReport:
    """Return a report whose messages are cut, once its secrets are masked."""

    def each(test: TestCaseResult) -> TestCaseResult:
        return structs.replace(test, message=test.message[:MAX_MESSAGE])

    return structs.replace(report, failed=tuple(map(each, report.failed)))


def counted(counts: CaseCounts) -> str:
    """Return the counts in words: `120 tests, 2 failed, 1 errored, 3 skipped`."""
    parts = [f"{counts.total} test{'' if counts.total == 1 else 's'}"]
    parts += [
        f"{number} {words}"
        for number, words in (
            (counts.failed, "failed"),
            (counts.errored, "errored"),
            (counts.skipped, "skipped"),
            (counts.flaky, "flaky"),
        )
        if number
    ]
    if counts.total and not counts.bad and not counts.skipped:
        parts.append("all passed")
    return ", ".join(parts)
