"""What `deliveries list` says when it lists nothing."""

import pytest

from solstice_forge.commands.deliveries_command import _print_list


@pytest.mark.parametrize(
    ("has_filters", "reported"),
    [(False, "No deliveries yet. One that"), (True, "No delivery matches. One that")],
)
def test_an_empty_list_is_said_on_standard_error_of_a_pipe(
    has_filters: bool, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_list([], None, 0.0, has_filters=has_filters)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(reported)
