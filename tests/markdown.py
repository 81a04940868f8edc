"""Writes tables in GitHub's Markdown, for the reference pages."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One line per row; a bar in a cell is escaped."""
    return "".join(_row(line) for line in [head, ["---"] * len(head), *rows])


def _row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |\n"
