"""A command about dead letters that is ended early says how far it came."""

import signal

import pytest
import typer

from solstice_cli.output.dead_letter_progress import HandledDeadLetters, interruptible
from solstice_common.errors import BrokerUnavailable


def half_done() -> HandledDeadLetters:
    tally = HandledDeadLetters("removed", 9)
    tally.of_queue(lambda _: None)(2)
    tally.of_queue(lambda _: None)(3)
    return tally


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_number_and_130(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as ended, interruptible(half_done().print):
        signal.raise_signal(number)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "removed at least 5 of 9 dead letters; the others are unchanged\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_lost_broker_is_reported_with_the_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokerUnavailable), interruptible(half_done().print):
        raise BrokerUnavailable("amqp://127.0.0.1", "refused")
    assert "removed at least 5 of 9" in capsys.readouterr().err
