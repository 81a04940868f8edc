"""Runs a command line: root group, exit codes, and errors as plain sentences."""

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from solstice_common.cli.completion.command_line import answer_shell
from solstice_common.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DeadLettersInUse,
    RightMissing,
    ServiceRefused,
    ServiceUnavailable,
    SolsticeError,
    StoreUnavailable,
    first_of,
)
from solstice_common.runtime.undumpable import make_undumpable

CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
"""The settings of every command line: `typer.Typer(context_settings=CONTEXT_SETTINGS)`."""


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    """The command worked and the answer is no: the job failed, the request was refused."""
    USAGE = 2
    """The command or its settings are wrong."""
    UNAVAILABLE = 3
    """A broker, database or service did not answer; trying again later may help."""
    INTERRUPTED = 130
    """Ctrl-C."""


_CLIENT_ERRORS: Final = frozenset({400, 401, 403, 404, 422})
"""HTTP statuses which mean that the command names what is not there, or that it or the token is wrong."""
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT})
BOXED_HELP_COLUMNS: Final = 120


class Commands(TyperGroup):
    """The root group of a command line.

    It explains wrong values in our words, and its help cuts no flag.
    """

    def make_context(self, *arguments: Any, **more: Any) -> typer.Context:
        if shutil.get_terminal_size().columns < BOXED_HELP_COLUMNS:
            in_plain_text(self)
        context = super().make_context(*arguments, **more)
        context.color = _colour()
        return context  # type: ignore[return-value]  # typer's own context

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own context, by its public name
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            wrong.message = _in_our_words(wrong.__cause__) or wrong.message
            raise


def silence_logs() -> None:
    """Log nothing until a service configures logging: a command reports by its output."""
    from solstice_common.telemetry.logs import configure_logs  # noqa: PLC0415  a third of what `version` would cost

    configure_logs(level="critical")


def _in_our_words(cause: BaseException | None) -> str | None:
    from pydantic import ValidationError  # noqa: PLC0415  only wrong values cost its import

    from solstice_common.values.validation import in_words  # noqa: PLC0415

    return in_words(cause.errors(include_url=False)[0]) if isinstance(cause, ValidationError) else None


def in_plain_text(command: object) -> None:
    """Print help of a command and its subcommands without boxes.

    The columns of the boxes would cut long flags.
    """
    vars(command)["rich_markup_mode"] = None
    for inner in getattr(command, "commands", {}).values():
        in_plain_text(inner)


def run(app: typer.Typer) -> None:
    """Run a command line; known errors become one line on standard error, without traceback.

    Raises any other error of a command with its traceback: that is a bug. Other processes of this user cannot read the
    process's environment from here on.
    """
    make_undumpable()
    # Older versions of typer show them beside a traceback, and secrets are among them.
    app.pretty_exceptions_show_locals = False
    _open_missing_streams()
    if "structlog" in sys.modules:
        silence_logs()
    answer_shell(app)
    try:
        _check_arguments(sys.argv)
        app()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except (SolsticeError, OSError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        if isinstance(error, BrokenPipeError):
            _leave_a_closed_pipe()
        code = _exit_code(error)
        if code is None:
            raise
        typer.secho(f"error: {_sentence(error)}", err=True, fg=typer.colors.RED, color=_colour())
        sys.exit(code)


def _colour() -> bool | None:
    """Return False where the user wants no colours (no-color.org); None leaves it to the stream."""
    return False if os.environ.get("NO_COLOR") else None


def _check_arguments(arguments: Sequence[str]) -> None:
    """ConfigurationError when an argument is not UTF-8: messages, requests and settings could not hold it."""
    for number, each in enumerate(arguments):
        if any("\ud800" <= character <= "\udfff" for character in each):
            # The value is not repeated: it may be a secret.
            raise ConfigurationError(
                f"argument {number} is not UTF-8: write it in UTF-8, or give the file another name"
            )


def _open_missing_streams() -> None:
    """Open what stands for a closed standard stream, which Python leaves out.

    Else a database or a socket gets the number of a stream, and output for people goes into it.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115  open to the end


def _leave_a_closed_pipe() -> None:
    """End quietly when the reader of standard output has gone, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(Exit.FAILED)


def _exit_code(error: BaseException) -> Exit | None:
    """Return the exit code; None for a bug, whose traceback is printed."""
    match error:
        case ConfigurationError() | RightMissing():
            return Exit.USAGE
        case ServiceRefused(status=status, code=code) if status in _CLIENT_ERRORS or code == "not_the_api":
            return Exit.USAGE
        case BrokerUnavailable() | DeadLettersInUse() | StoreUnavailable() | ServiceUnavailable():
            return Exit.UNAVAILABLE
        case SolsticeError():
            return Exit.FAILED
        case OSError() if error.errno in _DISK_FULL or error.filename is not None:
            return Exit.UNAVAILABLE if error.errno in _DISK_FULL else Exit.USAGE
    return None


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else "cannot write: "
        return f"{where}{error.strerror}"
    return ". ".join([str(error), *getattr(error, "__notes__", ())])
