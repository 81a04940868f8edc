"""Each table of each database says when its rows are removed."""

from tests.retention_table import tables_found, undeclared


def test_a_new_table_without_a_retention_is_found() -> None:
    found = dict(tables_found())
    assert undeclared(found) == set()
    found["store"] = found["store"] | {"heap"}
    found["broker"] = found["broker"] - {"messages"}
    assert undeclared(found) == {"store.heap", "broker.messages"}
