"""Says how far a command about dead letters is, or came before it was ended."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer

from solstice_common.broker.dead_letters.dead_letter_queue import Progress
from solstice_common.cli.program import Exit
from solstice_common.errors import BrokerError
from solstice_common.values.quantities import quantity

EVERY_SECONDS: Final = 0.5


@contextmanager
def progress(what: str, *, as_json: bool) -> Iterator[Progress]:
    """Say on a terminal, twice a second, how many are done."""
    if as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    shown_at, any_shown = time.monotonic(), False

    def say(done: int) -> None:
        nonlocal shown_at, any_shown
        if time.monotonic() - shown_at >= EVERY_SECONDS:
            shown_at, any_shown = time.monotonic(), True
            typer.echo(f"\r{what}: {done}", nl=False, err=True)

    try:
        yield say
    finally:
        if any_shown:
            typer.echo(err=True)


class HandledDeadLetters:
    """How many of all dead letters are done; removals count once the broker has answered."""

    def __init__(self, done_with: str, total: int) -> None:
        """`done_with` is what happens to them: `removed`."""
        self._done_with = done_with
        self._total = total
        self._before = self._done = 0

    def of_queue(self, say: Progress) -> Progress:
        """Return the progress of one more queue, which `say` shows, too."""
        self._before = self._done

        def count(done: int) -> None:
            self._done = self._before + done
            say(done)

        return count

    def print(self) -> None:
        """Say on standard error how far the command came."""
        numbers = f"{self._done} of {quantity(self._total, 'dead letter')}"
        typer.echo(f"{self._done_with} at least {numbers}; the others are unchanged", err=True)


@contextmanager
def interruptible(print_how_far: Callable[[], None]) -> Iterator[None]:
    """Call `print_how_far` when Ctrl-C, SIGTERM or the broker ends a command.

    An interrupted one exits with 130.
    """
    with _sigterm_as_interrupt():
        try:
            yield
        except KeyboardInterrupt:
            print_how_far()
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokerError:
            print_how_far()
            raise


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
