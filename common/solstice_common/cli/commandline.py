"""What the commands of Solstice CI have in common: flags made from settings, errors said plainly, exit codes."""

import errno
import inspect
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from solstice_common.cli import running_up
from solstice_common.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ServiceRefused,
    ServiceUnavailable,
    SolsticeError,
    StoreUnavailable,
    first_of,
)
from solstice_common.settings import SolsticeSettings, state_directory
from solstice_common.telemetry.logs import configure_logs
from solstice_common.times import age_seconds
from solstice_common.validation import in_words

S = TypeVar("S", bound=SolsticeSettings)


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    """It was done, and the answer is no: the job failed, the request was refused."""
    USAGE = 2
    """The command or its settings are wrong."""
    UNAVAILABLE = 3
    """A broker, database or service did not answer; trying again later may help."""
    INTERRUPTED = 130
    """Ctrl-C."""


_ASKED_WRONGLY: Final = frozenset({400, 401, 403, 422})
"""Answers of a service that mean: the command or the token is wrong."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT})
SLOW_SECONDS: Final = 2.0
BOXED_HELP_COLUMNS: Final = 100


CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
"""What every command line is made with: `typer.Typer(context_settings=CONTEXT_SETTINGS)`."""


class Commands(TyperGroup):
    """The group at the root of a command line: wrong values told in our words, help that cuts no flag."""

    def make_context(self, *arguments: Any, **more: Any) -> typer.Context:
        if shutil.get_terminal_size().columns < BOXED_HELP_COLUMNS:
            _in_plain_text(self)
        return super().make_context(*arguments, **more)  # type: ignore[return-value]  # as for invoke

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own context, by its public name
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            if isinstance(wrong.__cause__, ValidationError):
                wrong.message = in_words(wrong.__cause__.errors(include_url=False)[0])
            raise


def _in_plain_text(command: object) -> None:
    """Let a command and all below it print help without boxes, whose columns cut long flags."""
    vars(command)["rich_markup_mode"] = None
    for inner in getattr(command, "commands", {}).values():
        _in_plain_text(inner)


SETTINGS_PANEL: Final = "Settings (flag, else environment variable, else default)"


def with_settings(
    model: type[S], *, serves: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a Typer command one flag per field of `model`, and the finished object as its first argument.

    A flag that is given wins over the environment; a wrong value of either is a ConfigurationError that names it.
    A secret has no flag: everybody on the machine can read the arguments of a running command.

    A command that `serves` nothing takes the addresses that it was not told from the running `solstice up`.
    """
    flagged = {name: field for name, field in model.model_fields.items() if not _is_secret(field)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def call(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in flagged}
            told = {name: value for name, value in chosen.items() if value is not None}
            if serves:
                command(load_settings(model, **told), **given)
                return
            untold = [name for name in running_up.FOUND if name in flagged and not _is_told(name, told)]
            up = running_up.read() if untold else None
            found = {name: up.setting(name) for name in untold} if up else {}
            settings = load_settings(model, **found, **told)
            with _default_named(() if up else untold):
                command(settings, **given)

        flags = [_parameter(name, field) for name, field in flagged.items()]
        call.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]  # what Typer reads
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *flags]}
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate


def _is_told(name: str, flags: Mapping[str, object]) -> bool:
    return name in flags or any(each.lower() == name for each in os.environ)


@contextmanager
def _default_named(settings: Sequence[str]) -> Iterator[None]:
    """Add to an error about a place that does not answer where its address came from, and how to name another."""
    try:
        yield
    except (SolsticeError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        if settings and isinstance(error, BrokerUnavailable | StoreUnavailable | ServiceUnavailable):
            flags = " or ".join(f"--{name.replace('_', '-')} ({name.upper()})" for name in settings)
            error.add_note(
                f"This is the default: no 'solstice up' runs with the state directory {state_directory()}. "
                f"Name another place with {flags}, or another directory with SOLSTICE_HOME."
            )
        raise


def load_settings(model: type[S], **given: Any) -> S:
    """The settings from `given` and the environment; ConfigurationError says which is wrong and how."""
    try:
        return model(**given)
    except ValidationError as error:
        problems = [
            f"{str(problem['loc'][0]).upper() if problem['loc'] else 'settings'}: {in_words(problem)}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError("; ".join(problems)) from None


def age_given(option: str, text: str) -> float:
    """The age (`30d`, `12h`, `90m`, `60s`) that an option was given, in seconds; ConfigurationError names the option."""
    try:
        return age_seconds(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def run(app: typer.Typer) -> None:
    """Run a command line: an error we have a name for is one plain line on standard error, never a traceback.

    Nothing is logged until a service says how: what a command has to tell, it tells by its output.
    """
    configure_logs(level="critical")
    try:
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
        typer.secho(f"error: {_sentence(error)}", err=True, fg=typer.colors.RED)
        sys.exit(code)


def read_text(option: str, path: Path) -> str:
    """The text of a file that an option names; ConfigurationError when it cannot be read, or is no text."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option}: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{option}: {path}: byte {error.start} is not UTF-8") from None


@contextmanager
def said_when_slow(what: str) -> Iterator[Callable[[], None]]:
    """Say on a terminal what is waited for when it takes more than two seconds; yields what ends the wait early.

    Scripts are not told: nothing is written in a pipe, nor with --json.
    """
    if "--json" in sys.argv or not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield lambda: None
        return
    timer = threading.Timer(SLOW_SECONDS, lambda: typer.secho(f"waiting for {what} ...", err=True, dim=True))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _leave_a_closed_pipe() -> None:
    """End quietly when the reader of standard output has gone, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(Exit.FAILED)


def _exit_code(error: BaseException) -> Exit | None:
    """The exit code; None for what is a mistake of ours and keeps its traceback."""
    match error:
        case ConfigurationError():
            return Exit.USAGE
        case ServiceRefused(status=status, code=code) if status in _ASKED_WRONGLY or code == "not_the_api":
            return Exit.USAGE
        case BrokerUnavailable() | StoreUnavailable() | ServiceUnavailable():
            return Exit.UNAVAILABLE
        case SolsticeError():
            return Exit.FAILED
        case OSError() if error.errno in _NO_ROOM or error.filename is not None:
            return Exit.UNAVAILABLE if error.errno in _NO_ROOM else Exit.USAGE
    return None


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else "cannot write: "
        return f"{where}{error.strerror}"
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in {field.annotation, *get_args(field.annotation)}


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    shown = field.get_default(call_default_factory=True, validated_data={})
    flag = name.replace("_", "-")
    is_switch = field.annotation is bool
    option = typer.Option(
        f"--{flag}/--no-{flag}" if is_switch else f"--{flag}",
        help=f"{field.description} ({name.upper()})",
        show_default=str(shown) if shown not in (None, "") else False,
        rich_help_panel=SETTINGS_PANEL,
        metavar=None if is_switch else "VALUE",
    )
    kind = bool | None if is_switch else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
