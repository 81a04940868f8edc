"""Find the tests of a repository that passed and failed on one commit. Pure.

A job is compared with itself alone: its attempts, and the same job in further runs of the commit. So a test that always
fails in one combination of a matrix is not flaky.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from solstice_orchestrator.reports.results import digest_of, find_result
from solstice_orchestrator.reports.values import JobReport, TestCaseResult, TestState


class AttemptReport(Struct, frozen=True, kw_only=True):
    """The report of one attempt, with what it is compared by."""

    run_id: str
    job_id: str
    job: str
    attempt: int
    commit_sha: str
    created_at: float
    report: JobReport


class FlakyTest(Struct, frozen=True, kw_only=True):
    """A test that passed and failed on one commit."""

    name: str
    """Its full name."""
    job: str
    failures: int
    """In how many of the attempts that were looked at it failed."""
    commits: int
    """On how many commits it passed and failed."""
    commit_sha: str
    """The newest of them."""
    run_id: str
    """The newest run in which it failed there."""
    message: str
    file: str
    line: int | None
    last_at: float


Compared = Mapping[tuple[str, int], frozenset[int]]
"""By job and number of an attempt: digests of tests."""


def compared_attempts(attempts: Iterable[AttemptReport]) -> Compared:
    """Return the attempts of jobs that ran several times on a commit and had failures.

    Each has the tests that failed in one of them: whether it passed them has to be known.
    """
    found: dict[tuple[str, int], frozenset[int]] = {}
    for group in _by_job_and_commit(attempts).values():
        failed = frozenset(digest_of(test.full_name) for attempt in group for test in attempt.report.failed)
        if len(group) > 1 and failed:
            found.update({(attempt.job_id, attempt.attempt): failed for attempt in group})
    return found


def passed_in(results: bytes, digests: Iterable[int]) -> frozenset[int]:
    """Return those of the tests that passed in an attempt."""
    found = {digest: find_result(results, digest) for digest in digests}
    return frozenset(
        digest
        for digest, result in found.items()
        if result is not None and (result.state is TestState.PASSED or result.flaky)
    )


def flaky_tests(attempts: Iterable[AttemptReport], passed: Compared) -> Sequence[FlakyTest]:
    """Return the flaky tests, those that failed most often first.

    `passed`: which tests passed in those of `compared_attempts`.
    """
    found: dict[tuple[str, str], list[tuple[AttemptReport, TestCaseResult, int]]] = defaultdict(list)
    for group in _by_job_and_commit(attempts).values():
        for (job, name), (attempt, test, failures) in _flaky_in(group, passed).items():
            found[job, name].append((attempt, test, failures))
    tests = [_flaky_test(name, times) for (_, name), times in found.items()]
    return sorted(tests, key=lambda test: (-test.failures, -test.last_at, test.name))


def _by_job_and_commit(
    attempts: Iterable[AttemptReport],
) -> Mapping[tuple[str, str], Sequence[AttemptReport]]:
    groups: dict[tuple[str, str], list[AttemptReport]] = defaultdict(list)
    for attempt in attempts:
        groups[attempt.job, attempt.commit_sha].append(attempt)
    return groups


def _flaky_in(
    group: Sequence[AttemptReport], passed: Compared
) -> Mapping[tuple[str, str], tuple[AttemptReport, TestCaseResult, int]]:
    """Return the flaky tests of a job on one commit.

    Each has its newest attempt that failed, and how many did.
    """
    failed: dict[str, list[tuple[AttemptReport, TestCaseResult]]] = defaultdict(list)
    flaky: dict[str, list[tuple[AttemptReport, TestCaseResult]]] = defaultdict(list)
    for attempt in sorted(group, key=lambda each: -each.created_at):
        for test in attempt.report.failed:
            failed[test.full_name].append((attempt, test))
        for test in attempt.report.flaky:
            flaky[test.full_name].append((attempt, test))
    found = {}
    nothing = frozenset[int]()
    good = nothing.union(*(passed.get((attempt.job_id, attempt.attempt), nothing) for attempt in group))
    for name in {**failed, **flaky}:
        times = [*failed[name], *flaky[name]]
        if flaky[name] or digest_of(name) in good:
            failing = {(attempt.job_id, attempt.attempt) for attempt, _ in times}
            newest, test = max(times, key=lambda each: each[0].created_at)
            found[newest.job, name] = (newest, test, len(failing))
    return found


def _flaky_test(name: str, times: Sequence[tuple[AttemptReport, TestCaseResult, int]]) -> FlakyTest:
    newest, test, _ = max(times, key=lambda each: each[0].created_at)
    return FlakyTest(
        name=name,
        job=newest.job,
        failures=sum(failures for _, _, failures in times),
        commits=len({attempt.commit_sha for attempt, _, _ in times}),
        commit_sha=newest.commit_sha,
        run_id=newest.run_id,
        message=test.message,
        file=test.file,
        line=test.line,
        last_at=newest.created_at,
    )
