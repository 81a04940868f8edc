"""Differences of a broker, for a pipe and for a program."""

import pytest
import typer

from solstice_cli.output.topology_differences import check_document, exit_for, print_differences
from solstice_common.broker.topology_check import TopologyDifference

MISSING = TopologyDifference(object="queue a", difference="is missing", remedy="declare")


def test_in_a_pipe_each_difference_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_differences([MISSING], none="as it must be")
    assert capsys.readouterr().out == "queue a\tis missing\tdeclare\n"
    print_differences([], none="as it must be")
    assert capsys.readouterr().out == ""


def test_a_difference_ends_the_command_with_one() -> None:
    with pytest.raises(typer.Exit) as ended:
        exit_for([MISSING])
    assert ended.value.exit_code == 1
    exit_for([])


def test_json_names_the_broker_and_each_difference() -> None:
    row = {"object": "queue a", "difference": "is missing", "remedy": "declare"}
    assert check_document("amqp://host", [MISSING]) == {"broker": "amqp://host", "differences": [row]}
