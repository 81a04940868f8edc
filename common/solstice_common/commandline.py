"""What the commands of Solstice CI have in common: flags made from settings, errors said plainly, exit codes."""

import inspect
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, Final, TypeVar, get_args

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from solstice_common.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ServiceUnavailable,
    SolsticeError,
    StoreUnavailable,
    first_of,
)
from solstice_common.logs import configure_logs
from solstice_common.settings import SolsticeSettings
from solstice_common.times import age_seconds

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


CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
"""What every command line is made with: `typer.Typer(context_settings=CONTEXT_SETTINGS)`."""

SETTINGS_PANEL: Final = "Settings (flag, else environment variable, else default)"


def with_settings(model: type[S]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a Typer command one flag per field of `model`, and the finished object as its first argument.

    A flag that is given wins over the environment; a wrong value of either is a ConfigurationError that names it.
    A secret has no flag: everybody on the machine can read the arguments of a running command.
    """
    flagged = {name: field for name, field in model.model_fields.items() if not _is_secret(field)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def call(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in flagged}
            command(load_settings(model, **{n: v for n, v in chosen.items() if v is not None}), **given)

        flags = [_parameter(name, field) for name, field in flagged.items()]
        call.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]  # what Typer reads
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *flags]}
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate


def load_settings(model: type[S], **given: Any) -> S:
    """The settings from `given` and the environment; ConfigurationError says which is wrong and how."""
    try:
        return model(**given)
    except ValidationError as error:
        problems = [
            f"{str(problem['loc'][0]).upper() if problem['loc'] else 'settings'}: "
            f"{problem['msg'].removeprefix('Value error, ')}"
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
    except (SolsticeError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        if not isinstance(error, SolsticeError):
            raise
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(_exit_code(error))


def _exit_code(error: SolsticeError) -> Exit:
    match error:
        case ConfigurationError():
            return Exit.USAGE
        case BrokerUnavailable() | StoreUnavailable() | ServiceUnavailable():
            return Exit.UNAVAILABLE
        case _:
            return Exit.FAILED


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
