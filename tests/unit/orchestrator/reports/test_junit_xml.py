"""Reports of many tools are understood, and others are refused with their place."""

import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_orchestrator.reports.junit_xml import NotJUnit, read_junit
from solstice_orchestrator.reports.reduction import ReportReduction
from solstice_orchestrator.reports.values import MAX_FAILED, RAW_MESSAGE, JobReport, TestCaseResult, TestState
from tests.unit.orchestrator.reports.dialects import DIALECTS, ROOTS, Dialect


def report_of(*contents: str | bytes, roots: Sequence[str] = ROOTS) -> JobReport:
    summary = ReportReduction()
    for content in contents:
        read_junit(content.encode() if isinstance(content, str) else content, summary.take, roots)
    return summary.report()


def case(inner: str = "", attributes: str = 'name="a"') -> str:
    return f"<testsuite><testcase {attributes}>{inner}</testcase></testsuite>"


@pytest.mark.parametrize("dialect", DIALECTS, ids=[each.tool for each in DIALECTS])
def test_a_dialect_is_understood(dialect: Dialect) -> None:
    report = report_of(dialect.xml)
    counts = report.counts
    assert (counts.passed, counts.failed, counts.errored, counts.skipped) == dialect.counts
    name, message, file, line = dialect.first
    first = report.failed[0] if report.failed else TestCaseResult(name="")
    assert (first.full_name, first.file, first.line) == (name, file, line)
    assert first.message.startswith(message)
    assert all(each.file == each.file.strip() and "\n" not in each.file for each in report.failed)


def test_a_test_that_passed_at_last_is_flaky() -> None:
    nextest = next(each for each in DIALECTS if each.tool == "cargo-nextest")
    report = report_of(nextest.xml)
    assert (report.counts.flaky, [each.name for each in report.flaky]) == (1, ["tests::flaky"])


@pytest.mark.parametrize(
    ("written", "seconds"),
    {
        "1.5": 1.5,
        "1,234.5": 1234.5,
        "1,5": 1.5,
        "": 0,
        "-1": 0,
        "nan": 0,
        "inf": 0,
        "1e999": 0,
        "soon": 0,
    }.items(),
)
def test_times_of_all_tools_are_read(written: str, seconds: float) -> None:
    assert report_of(case(attributes=f'name="a" time="{written}"')).counts.seconds == seconds


BOMB = (
    """<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><testsuite name="&b;"/>"""
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("<html><body/></html>", "line 1: it begins with <html>"),
        ("{}", "line 1, column 1: not well-formed (invalid token)"),
        ("<testsuite>\n<testcase>", "line 2, column 11: no element found"),
        (
            "<testsuite>\n<testcase name='\x1b'/></testsuite>",
            "line 2, column 17: not well-formed (invalid token)",
        ),
        (BOMB, "line 1: it has a document type (DTD)"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><testsuite/>', "line 1: it has a document type (DTD)"),
        ("<testsuite>&xxe;</testsuite>", "line 1, column 12: undefined entity"),
        ("<testsuite>" * 60, "line 1: more than 50 elements are inside each other"),
        (case("<a>" * 60), "line 1: more than 50 elements are inside each other"),
        (case("<a/>" * 1001), "line 1: a test has more than 1000 elements"),
        (
            "<testsuite {}/>".format(" ".join(f"a{number}='x'" for number in range(101))),
            "line 1: an element has more than 100 attributes",
        ),
        ('<?xml version="1.0" encoding="klingon"?><testsuite/>', "its encoding is not known"),
        (b"\xff\xfe\x00", "line 1, column"),
    ],
)
def test_what_is_no_report_is_refused_with_its_place(content: str | bytes, words: str) -> None:
    with pytest.raises(NotJUnit, match=words.replace("(", r"\(").replace(")", r"\)")):
        report_of(content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252"])
def test_a_report_may_have_another_encoding(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + case(attributes='name="füße"')
    assert report_of(text.encode(encoding)).counts.passed == 1


def test_tests_before_a_broken_place_count() -> None:
    summary = ReportReduction()
    with pytest.raises(NotJUnit):
        read_junit(b'<testsuite><testcase name="a"/><testcase name="b"/><testc', summary.take)
    assert summary.report().counts.passed == 2


def test_long_texts_are_cut_and_lists_are_bounded() -> None:
    long = "x" * 1_000_000
    failed = f'<testcase name="{long}" classname="{long}" file="{long}"><failure message="{long}">{long}</failure></testcase>'
    report = report_of(f"<testsuite name='{long}'>{failed}{failed}</testsuite>")
    first = report.failed[0]
    assert (len(first.name), len(first.class_name), len(first.suite)) == (500, 500, 500)
    assert (len(first.message), first.file) == (RAW_MESSAGE, "")
    many = "".join(f'<testcase name="{number}"><failure/></testcase>' for number in range(1000))
    report = report_of(f"<testsuite>{many}</testsuite>")
    assert (report.counts.failed, len(report.failed), len(report.slowest)) == (1000, MAX_FAILED, 0)


def test_texts_in_many_pieces_take_time_by_their_length() -> None:
    pieces = "<!-- -->a" * 200_000
    report = report_of(case(f"<failure>{pieces}</failure>"))
    assert report.failed[0].message == "a" * RAW_MESSAGE


def test_a_trace_of_words_without_end_is_searched_quickly() -> None:
    traces = ("a." * 50_000, "/" * 50_000, "a.py:" * 20_000, "a/b-c" * 20_000)
    begun = time.process_time()
    report = report_of(*(case(f"<failure>{trace}</failure>") for trace in traces))
    assert report.counts.failed == len(traces)
    assert time.process_time() - begun < 2


NAMES = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs", "Cc"]), max_size=20)
STATES = st.sampled_from(list(TestState))
INNER = {
    TestState.PASSED: "",
    TestState.FAILED: "<failure/>",
    TestState.ERRORED: "<error>x</error>",
    TestState.SKIPPED: "<skipped/>",
}


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, NAMES, STATES), max_size=20))
def test_what_was_written_is_counted(tests: list[tuple[str, str, TestState]]) -> None:
    cases = "".join(
        f'<testcase name="{escaped(name)}" classname="{escaped(above)}">{INNER[state]}</testcase>'
        for name, above, state in tests
    )
    counts = report_of(f"<testsuites><testsuite>{cases}</testsuite></testsuites>").counts
    assert [counts.passed, counts.failed, counts.errored, counts.skipped] == [
        sum(each is state for _, _, each in tests)
        for state in (TestState.PASSED, TestState.FAILED, TestState.ERRORED, TestState.SKIPPED)
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_refused(content: bytes) -> None:
    for each in (
        content,
        b"<testsuite>" + content,
        b'<testsuite><testcase name="' + content + b'"/></testsuite>',
    ):
        with suppress(NotJUnit):
            report_of(each)


def test_a_hundred_thousand_tests_are_read_in_seconds() -> None:
    cases = "".join(
        f'<testcase classname="tests.module{number % 500}.TestThings" name="test_{number}[p]" time="0.{number % 1000:03}">'
        + ("" if number % 100 else '<failure message="no">tests/test_a.py:3: AssertionError</failure>')
        + "</testcase>"
        for number in range(100_000)
    )
    begun = time.process_time()
    counts = report_of(f"<testsuites><testsuite>{cases}</testsuite></testsuites>").counts
    assert (counts.total, counts.failed) == (100_000, 1000)
    assert time.process_time() - begun < 5
