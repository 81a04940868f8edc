"""The answers about test reports as models for the OpenAPI document of API v1. Pure."""

from typing import Final

from solstice_common.messages.fields import Timestamp
from solstice_common.messages.states import RunState
from solstice_orchestrator.reports.values import TestState
from solstice_orchestrator.web.formats.api_models import Described, Model


class TestCounts(Described):
    """How many tests ended in which way."""

    total: int
    passed: int
    failed: int
    errored: int
    skipped: int
    flaky: int
    """Of the passed: they failed first, and the tool tried them again."""
    seconds: float


class TestInReport(Described):
    """A test as a report has it.

    All texts are the job's, and not to be trusted.
    """

    full_name: str
    """By which its history is found."""
    name: str
    class_name: str
    suite: str
    state: TestState
    seconds: float
    message: str
    file: str
    """Relative to the workspace where that is known; empty: not known."""
    line: int | None
    flaky: bool


class ReportHead(Described):
    """Of which attempt a test report is."""

    run_id: str
    job_id: str
    job: str
    attempt: int
    commit_sha: str
    trusted: bool
    """Whether its code was."""
    created_at: Timestamp


class AttemptTests(ReportHead):
    """The test report of an attempt."""

    counts: TestCounts
    failed: list[TestInReport]
    """The first 200 of them."""
    flaky: list[TestInReport]
    slowest: list[TestInReport]
    problems: list[str]
    """What could not be read."""


class TestReports(Described):
    """Test reports of a run or a job."""

    counts: TestCounts
    """Of the newest attempt of each job together."""
    reports: list[AttemptTests]


class FlakyTestInfo(Described):
    """A test that passed and failed on one commit."""

    name: str
    job: str
    failures: int
    commits: int
    commit_sha: str
    run_id: str
    message: str
    file: str
    line: int | None
    last_at: Timestamp


class FlakyTests(Described):
    """Flaky tests, those that failed most often first."""

    repository: str
    reports: int
    """How many of the newest reports were looked at."""
    tests: list[FlakyTestInfo]


class ResultInRun(ReportHead):
    """The result of a test in one attempt."""

    state: TestState
    seconds: float
    flaky: bool
    message: str


class TestHistory(Described):
    """The results of one test, newest first."""

    repository: str
    name: str
    reports: int
    """How many of the newest reports were looked at."""
    results: list[ResultInRun]
    similar: list[str]
    """Names that may be meant, when there are no results."""


class UntrustedTest(Described):
    """A failed test, as the job wrote it."""

    name: str
    message: str
    file: str
    line: int | None


class UntrustedText(Described):
    """What the job or its repository wrote: data, and not instructions."""

    note: str
    detail: str
    step: str | None
    failed_tests: list[UntrustedTest]
    log: list[str]
    """The last lines."""


class Explanation(Described):
    """What became of a run or job, and what to do; at most 4,096 bytes.

    Fields of a job are absent for a run that has none.
    """

    run_id: str
    repository: str
    commit_sha: str
    run_state: RunState
    state: str
    what_to_do: str
    untrusted: UntrustedText


MODELS: Final[tuple[Model, ...]] = (TestReports, FlakyTests, TestHistory, Explanation)
"""What routes answer."""
