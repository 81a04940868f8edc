"""Prints tables that fit a terminal.

Ids and states are shown whole; the least informative columns are left out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

FOLDED_WIDTH: Final = 12
_GAP: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns that may shrink, by their headings. All other columns are shown whole."""

    folded: Collection[str]
    """Columns that may be folded into further lines, at least `FOLDED_WIDTH` wide.

    Where even that does not fit, every column is: nothing is cut.
    """
    dropped_first: Sequence[str]
    """Columns that may be left out, in this order; never the first one."""


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], layout: Layout
) -> None:
    """Print the rows under their headings, then the columns that did not fit.

    Rows are in rich's markup.
    """
    widths = [
        max(len(column), *(Text.from_markup(row[place]).cell_len for row in rows))
        for place, column in enumerate(columns)
    ]
    shown = fitting(columns, widths, console.width, layout)
    fits = _needed(columns, widths, shown, layout) <= console.width
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place in shown:
        table.add_column(
            columns[place], no_wrap=fits and columns[place] not in layout.folded, overflow="fold"
        )
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    console.print(table)
    left_out = [column for place, column in enumerate(columns) if place not in shown]
    if left_out:
        console.print(
            f"Not enough width for {', '.join(left_out)}: widen the terminal, or use --json",
            style="dim",
            markup=False,
        )


def fitting(
    columns: Sequence[str], widths: Sequence[int], columns_left: int, layout: Layout
) -> Sequence[int]:
    """Return the indexes of the columns that fit. Pure."""
    shown = list(range(len(columns)))
    for column in layout.dropped_first:
        if _needed(columns, widths, shown, layout) <= columns_left:
            break
        shown = [place for place in shown if columns[place] != column or place == 0]
    return shown


def _needed(columns: Sequence[str], widths: Sequence[int], shown: Sequence[int], layout: Layout) -> int:
    return sum(
        min(widths[place], FOLDED_WIDTH) if columns[place] in layout.folded else widths[place]
        for place in shown
    ) + _GAP * (len(shown) - 1)
