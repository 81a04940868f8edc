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
class TableLayout:
    """The columns that may shrink, by their headings. All other columns are shown whole."""

    folded: Collection[str]
    """Columns that may be folded into further lines, at least `FOLDED_WIDTH` wide.

    Where even that does not fit, every column is: nothing is cut.
    """
    dropped_first: Sequence[str]
    """Columns that may be left out, in this order; never the first one."""


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], layout: TableLayout
) -> None:
    """Print the rows under their headings, then the columns that did not fit.

    Rows are in rich's markup.
    """
    widths = [
        max(len(column), *(Text.from_markup(row[index]).cell_len for row in rows))
        for index, column in enumerate(columns)
    ]
    shown = fitting(columns, widths, console.width, layout)
    fits = _needed(columns, widths, shown, layout) <= console.width
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index in shown:
        table.add_column(
            columns[index], no_wrap=fits and columns[index] not in layout.folded, overflow="fold"
        )
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    console.print(table)
    left_out = [column for index, column in enumerate(columns) if index not in shown]
    if left_out:
        console.print(
            f"Not enough width for {', '.join(left_out)}: widen the terminal, or use --json",
            style="dim",
            markup=False,
        )


def fitting(
    columns: Sequence[str], widths: Sequence[int], columns_left: int, layout: TableLayout
) -> Sequence[int]:
    """Return the indexes of the columns that fit. Pure."""
    shown = list(range(len(columns)))
    for column in layout.dropped_first:
        if _needed(columns, widths, shown, layout) <= columns_left:
            break
        shown = [index for index in shown if columns[index] != column or index == 0]
    return shown


def _needed(columns: Sequence[str], widths: Sequence[int], shown: Sequence[int], layout: TableLayout) -> int:
    return sum(
        min(widths[index], FOLDED_WIDTH) if columns[index] in layout.folded else widths[index]
        for index in shown
    ) + _GAP * (len(shown) - 1)
