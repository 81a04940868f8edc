"""What a job's test reports say, in bounded values."""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

MAX_FAILED: Final = 200
"""Failed tests of one attempt that are listed; all are counted."""
MAX_SLOWEST: Final = 20
MAX_FLAKY: Final = 50
MAX_PROBLEMS: Final = 20
MAX_NAME: Final = 500
"""Characters of the name of a test, its class, suite or file."""
MAX_MESSAGE: Final = 2000
RAW_MESSAGE: Final = 4000
"""Of a message as it is read; once secrets are masked, it is cut to MAX_MESSAGE."""
MAX_SHOWN: Final = 128 * 1024
"""Characters of all failed tests together."""


class TestState(StrEnum):
    """How a test ended."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    """What it checks is not so."""
    ERRORED = "errored"
    """It could not check it: an exception, a broken fixture, a timeout."""
    SKIPPED = "skipped"


BAD: Final = frozenset({TestState.FAILED, TestState.ERRORED})


class CaseCounts(Struct, frozen=True, kw_only=True):
    """How many tests ended in which way, and how long they took together."""

    passed: int = 0
    failed: int = 0
    errored: int = 0
    skipped: int = 0
    flaky: int = 0
    """Of the passed: they failed first, and the tool tried them again."""
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.errored + self.skipped

    @property
    def bad(self) -> int:
        """How many failed or errored."""
        return self.failed + self.errored

    def plus(self, other: "CaseCounts") -> "CaseCounts":
        return CaseCounts(
            passed=self.passed + other.passed,
            failed=self.failed + other.failed,
            errored=self.errored + other.errored,
            skipped=self.skipped + other.skipped,
            flaky=self.flaky + other.flaky,
            seconds=self.seconds + other.seconds,
        )


class TestCaseResult(Struct, frozen=True, kw_only=True):
    """One test as a report has it."""

    __test__ = False

    name: str
    class_name: str = ""
    suite: str = ""
    state: TestState = TestState.PASSED
    seconds: float = 0.0
    message: str = ""
    """Why it did not pass."""
    file: str = ""
    """Relative to the workspace where that is known; empty: the report does not say it."""
    line: int | None = None
    flaky: bool = False
    """It passed after it had failed, in this report."""

    @property
    def full_name(self) -> str:
        """The name by which it is found again in other runs."""
        return full_name(self.class_name, self.suite, self.name)


class JobReport(Struct, frozen=True, kw_only=True):
    """What all reports of one attempt say together."""

    counts: CaseCounts = CaseCounts()
    failed: tuple[TestCaseResult, ...] = ()
    """The first MAX_FAILED of them, in the order of the reports."""
    flaky: tuple[TestCaseResult, ...] = ()
    """The first MAX_FLAKY that passed after they had failed."""
    slowest: tuple[TestCaseResult, ...] = ()
    """Slowest first."""
    problems: tuple[str, ...] = ()
    """What could not be read, for people."""
    results: bytes = b""
    """Of every test (`results.py`)."""


class StatusTest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failed test of a status, with its fields in canonical order."""

    file: str = ""
    line: int | None = None
    message: str = ""
    name: str


class StatusTests(Struct, frozen=True, kw_only=True):
    """`tests` of `jobstatus.v1`, with its fields in canonical order."""

    errored: int
    failed: int
    failures: tuple[StatusTest, ...]
    passed: int
    skipped: int


NOTHING_REPORTED: Final = JobReport()


def full_name(class_name: str, suite: str, name: str) -> str:
    """Return the name of a test with what tells it from others."""
    above = class_name or suite
    if not above or name.startswith(above):
        return name
    return f"{above}::{name}"


encode_report: Final = msgspec.json.Encoder().encode
decode_report: Final = msgspec.json.Decoder(JobReport).decode
