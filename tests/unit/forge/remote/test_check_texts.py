"""Checks show failed tests as code, and annotate plain files alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import BadTestV1, TestCountsV1
from solstice_forge.remote.check_texts import MAX_ANNOTATIONS, annotations, check_summary


def counts(*failures: BadTestV1) -> TestCountsV1:
    return TestCountsV1(passed=2, failed=len(failures), errored=0, skipped=1, failures=list(failures))


def test_a_failed_test_is_an_annotation_on_its_line() -> None:
    failed = BadTestV1(name="tests.a::bad", message="no\nsecond", file="tests/a [x].py", line=7)
    assert annotations(counts(failed)) == [
        {
            "path": "tests/a [x].py",
            "start_line": 7,
            "end_line": 7,
            "annotation_level": "failure",
            "title": "tests.a::bad",
            "message": "no\nsecond",
        }
    ]
    assert check_summary("It failed", counts(failed)) == (
        "It failed\n\n| passed | failed | errored | skipped |\n|---|---|---|---|\n| 2 | 1 | 0 | 1 |\n\n"
        "```text\ntests.a::bad (tests/a [x].py:7)\n```"
    )


@pytest.mark.parametrize(
    "file",
    ["", "/etc/passwd", "../a.py", "a/../b.py", "a//b.py", "./a.py", "C:/a.py", "a\nb", "é.py", "a/", "<b>"],
)
def test_a_file_that_is_no_plain_path_has_no_annotation(file: str) -> None:
    assert annotations(counts(BadTestV1(name="a", file=file, line=1))) == []


TEXTS = st.text(st.sampled_from("a`@<[!\n\x1b\u202e\U0001f600"), max_size=30)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=50))
def test_no_text_of_a_job_leaves_its_block(tests: list[tuple[str, str]]) -> None:
    failed = [BadTestV1(name=name, message=message, file="a.py") for name, message in tests]
    summary = check_summary("title", counts(*failed))
    _, block, end = summary.split("```")
    assert (block.startswith("text\n"), end) == (True, "")
    shown = annotations(counts(*failed))
    assert len(shown) == min(len(failed), MAX_ANNOTATIONS)
    for each in (summary, *(f"{one['title']}{one['message']}" for one in shown)):
        assert not any(ord(character) > 0xFFFF or character in "\x1b\u202e" for character in each)
    assert all(one["title"] and one["message"] for one in shown)
