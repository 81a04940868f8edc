"""Say in a check of GitHub which tests failed, and on which lines. Pure.

All names, messages and files are a job's own text: they are shown as code, so that they mention no user and format nothing, and
a file that is no plain path of a repository gets no annotation. Source: docs.github.com/rest/checks/runs (at most 50
annotations in a request; summaries of at most 65,535 characters).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from solstice_common.messages import BadTestV1, TestCountsV1
from solstice_common.values.visible_text import visible, visible_line
from solstice_forge.remote.texts import shortened

MAX_ANNOTATIONS: Final = 50
TITLE_CHARACTERS: Final = 255
MESSAGE_CHARACTERS: Final = 2000
MAX_LISTED: Final = 20
_LAST_OF_THREE_BYTES: Final = 0xFFFF
_PLAIN_PATH: Final = re.compile(
    r"(?!.*(?:^|/)\.{1,2}(?:/|$))[\w@+.()\[\] -]+(?:/[\w@+.()\[\] -]+)*", re.ASCII
)


def check_summary(title: str, tests: TestCountsV1) -> str:
    """Return the text of a check, in Markdown."""
    table = (
        "| passed | failed | errored | skipped |\n|---|---|---|---|\n"
        f"| {tests.passed} | {tests.failed} | {tests.errored} | {tests.skipped} |"
    )
    listed = [_listed(test) for test in tests.failures[:MAX_LISTED]]
    failed = "```text\n" + "\n".join(listed) + "\n```" if listed else ""
    return "\n\n".join(filter(None, (title, table, failed)))


def annotations(tests: TestCountsV1) -> Sequence[Mapping[str, object]]:
    """Return an annotation for each failed test whose file is known."""
    return [
        {
            "path": test.file,
            "start_line": test.line or 1,
            "end_line": test.line or 1,
            "annotation_level": "failure",
            "title": shortened(test.name, TITLE_CHARACTERS, astral=False) or "test",
            "message": _basic(visible(test.message))[:MESSAGE_CHARACTERS] or "It failed.",
        }
        for test in tests.failures[:MAX_ANNOTATIONS]
        if _PLAIN_PATH.fullmatch(test.file)
    ]


def _listed(test: BadTestV1) -> str:
    line = f":{test.line}" if test.line else ""
    place = f" ({test.file}{line})" if test.file else ""
    # Three of them would end the block of code.
    return _basic(visible_line(f"{test.name}{place}")).replace("`", "'")


def _basic(text: str) -> str:
    """Return the text without characters of four bytes, which GitHub may refuse."""
    return "".join(each if ord(each) <= _LAST_OF_THREE_BYTES else "\ufffd" for each in text)
