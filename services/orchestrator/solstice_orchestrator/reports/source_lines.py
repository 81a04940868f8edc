"""Find the file and line of a failed test in what its tool wrote. Pure.

Few tools say where a test is; most write a trace. Places in the project win over those in libraries.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from solstice_orchestrator.reports.values import MAX_NAME

MAX_SEARCHED: Final = 16_000
"""Characters of a trace that are looked at."""
MAX_LINES: Final = 100
MAX_LINE: Final = 10_000_000

_EXTENSIONS: Final = (
    "py|pyi|js|jsx|mjs|cjs|ts|tsx|mts|cts|vue|svelte|go|rs|java|kt|kts|groovy|scala|php|phpt|rb|feature|cs|fs|vb|"
    "c|cc|cpp|cxx|h|hh|hpp|hxx|ipp|m|mm|swift|ex|exs|erl|bats|sh|bash|pl|pm|t|dart|lua|nim|zig|hs|ml|clj|jl|r|R|robot"
)
# It begins where a word begins, so that a long word is not looked at again from each of its letters.
_PATH: Final = rf"(?<![\w@+~./\\-])(?P<file>(?:[A-Za-z]:)?[\w@+~./\\-]{{1,400}}\.(?:{_EXTENSIONS}))"
_LINES: Final = re.compile(
    rf"{_PATH}(?::line (?P<dotnet>\d{{1,8}})\b"  # .NET: in /src/Foo.cs:line 12
    r"|:(?P<colon>\d{1,8})(?!\d)"  # most
    r"|\((?P<bracket>\d{1,8})(?:,\d+)?\)"  # MSVC, TypeScript: foo.cc(12)
    r"|\"?, line (?P<words>\d{1,8})\b)"  # Python's own traces, bats
)
_LINE_ALONE: Final = re.compile(r"\bline (\d{1,8})\b")
_OF_LIBRARIES: Final = re.compile(
    r"(?:^|/)(?:node_modules|vendor|site-packages|dist-packages|\.venv|venv|\.cargo|\.rustup|gems|"
    r"usr/(?:lib|local|share)|jdk|java\.base|rustc|lib/python3[^/]*|internal|library/(?:std|core|alloc))/|^node:"
)


class SourceLine(NamedTuple):
    """A file and one of its lines; empty and None where they are not known."""

    file: str = ""
    line: int | None = None


def source_line(
    attributes: tuple[str, str], texts: Sequence[str], class_name: str, roots: Sequence[str]
) -> SourceLine:
    """Return where a test failed.

    `attributes` are the file and line that the report gives to the test, `texts` its message and trace, `roots` the
    paths under which the job had its workspace.
    """
    file, line = _in_workspace(attributes[0], roots), _line(attributes[1])
    # pytest ends its trace with the place of the failure; others begin with it.
    at_end = [each for text in texts for each in _pytest_end(text, roots)]
    if at_end:
        return at_end[0]
    found = [
        SourceLine(_in_workspace(each.file, roots), each.line) for text in texts for each in _lines_in(text)
    ]
    own = [each for each in found if not _OF_LIBRARIES.search(each.file)]
    if file:
        same = [each for each in own if _is_same(each.file, file)]
        return SourceLine(file, same[0].line if same else line)
    known = _of_class(own, class_name) or own
    if known:
        return known[0]
    if "/" in class_name and re.search(rf"\.(?:{_EXTENSIONS})$", class_name):
        # Linters name the file as the class.
        alone = next((found for text in texts for found in _LINE_ALONE.findall(text)), "")
        return SourceLine(_in_workspace(class_name, roots), _line(alone))
    return SourceLine()


def _of_class(found: Sequence[SourceLine], class_name: str) -> Sequence[SourceLine]:
    """Return those in the file of a class of Java's kind: `com.acme.FooTest` in `FooTest.java`."""
    simple = re.split(r"[.$]", class_name)[-1]
    parts = class_name.split(".")
    return [
        SourceLine("/".join([*parts[:-1], each.file]), each.line)
        for each in found
        if "/" not in each.file
        and len(parts) > 1
        and each.file.partition(".")[0] == simple
        and each.file.endswith((".java", ".kt", ".scala", ".groovy"))
    ]


def _pytest_end(text: str, roots: Sequence[str]) -> Iterator[SourceLine]:
    lines = [line for line in text.rstrip()[-MAX_NAME:].splitlines() if line.strip()]
    if lines and (match := re.fullmatch(rf"{_PATH}:(?P<line>\d{{1,8}}): \w[\w.]*", lines[-1].strip())):
        yield SourceLine(_in_workspace(match["file"], roots), _line(match["line"]))


def _lines_in(text: str) -> Iterator[SourceLine]:
    searched = text
    if len(text) > MAX_SEARCHED:
        searched = text[: MAX_SEARCHED // 2] + "\n" + text[-MAX_SEARCHED // 2 :]
    for count, match in enumerate(_LINES.finditer(searched)):
        if count == MAX_LINES:
            return
        digits = match["dotnet"] or match["colon"] or match["bracket"] or match["words"]
        yield SourceLine(match["file"], _line(digits))


def _is_same(one: str, other: str) -> bool:
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _in_workspace(path: str, roots: Sequence[str]) -> str:
    """Return a path relative to the workspace, where it is below one of its roots."""
    path = path.strip().removeprefix("file://").replace("\\", "/")
    for root in roots:
        if root and path.startswith(f"{root.rstrip('/')}/"):
            path = path[len(root.rstrip("/")) + 1 :]
            break
    while path.startswith("./"):
        path = path[2:]
    return path if len(path) <= MAX_NAME else ""


def _line(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LINE))
    return int(text) if is_number and 0 < int(text) <= MAX_LINE else None
