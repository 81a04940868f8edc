"""Reads the documentation's pages: links, commands, quoted names."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import typer
from typer.testing import CliRunner

from solstice_cli.main import app as solstice
from solstice_forge.cli import app as forge_integration
from solstice_orchestrator.cli import app as orchestrator

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "schemas/README.md")
)
PROGRAMS: Final[Mapping[str, typer.Typer]] = {
    "solstice": solstice,
    "forge-integration": forge_integration,
    "orchestrator": orchestrator,
}
_FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str, language: str) -> Sequence[str]:
    """The fenced blocks in this language."""
    return [body for name, body in _FENCE.findall(text_of(page)) if name == language]


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def quoted(page: str) -> Iterator[str]:
    """The texts between backticks."""
    for span in re.findall(r"`([^`]+)`", prose(page)):
        yield " ".join(span.split())


def headings(page: str) -> set[str]:
    """The anchors of the page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: str) -> Iterator[tuple[str, str]]:
    """Each link inside the repository: its path and its anchor.

    The path is empty for a link within the page.
    """
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            yield path, anchor


def shell_lines(page: str) -> Iterator[str]:
    """Every command line of the `sh` blocks, without comments."""
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            text = line.partition("  #")[0].partition(" # ")[0].strip()
            if text:
                yield text


def command_lines(page: str) -> Iterator[str]:
    """The command lines of our programs on the page.

    They are those of `sh` blocks, and those quoted in the text with more than the program's name.
    """
    for line in (*shell_lines(page), *quoted(page)):
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        called = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        if len(called) > 1 and called[0] in PROGRAMS:
            yield line


@cache
def help_of(program: str, *words: str) -> str:
    # Wide, and plain: a flag must not be broken over two lines.
    result = CliRunner().invoke(
        PROGRAMS[program], [*words, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}, prog_name=program
    )
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def subcommand(arguments: Sequence[str]) -> list[str]:
    """The leading words that are neither flags nor values: `topology declare`."""
    words = []
    for argument in arguments:
        if not re.fullmatch(r"[a-z][a-z-]*", argument):
            break
        words.append(argument)
    return words


def recipes() -> set[str]:
    """The recipes of `./just`."""
    return set(re.findall(r"^([a-z]+)(?: \*ARGS)?:", text_of("Justfile"), re.MULTILINE))
