"""Which columns of a table fit a terminal, and how the others are named."""

import io

from rich.console import Console

from solstice_common.cli.tables import TableLayout, print_table

LAYOUT = TableLayout(folded=frozenset(), dropped_first=("AGE", "EVENT"))


def test_the_columns_that_do_not_fit_are_named_in_a_sentence() -> None:
    written = io.StringIO()
    print_table(
        Console(file=written, width=24),
        ("RUN", "EVENT", "AGE"),
        [("4a2a2219", "change_request", "3 days")],
        LAYOUT,
    )
    printed = written.getvalue()
    assert "RUN       EVENT" in printed
    assert " ".join(printed.split()).endswith("Not enough width for AGE: widen the terminal, or use --json")
