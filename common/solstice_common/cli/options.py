"""Options that several commands share: flags made from settings, `--json`, ages and files."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import typer
from pydantic import SecretStr, ValidationError
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from solstice_common.cli import running_up
from solstice_common.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ServiceUnavailable,
    SolsticeError,
    StoreUnavailable,
    first_of,
)
from solstice_common.runtime.hidden_secrets import may_hold_secret
from solstice_common.settings import SolsticeSettings, state_directory
from solstice_common.values.times import age_seconds
from solstice_common.values.validation import in_words

S = TypeVar("S", bound=SolsticeSettings)
_ALSO_FLAG: Final = "also_flag"
SETTINGS_PANEL: Final = "Settings (flag, else environment variable, else default)"

_NOT_REACHED: Final[Mapping[str, type[SolsticeError]]] = {
    "amqp_url": BrokerUnavailable,
    "forge_inbox_url": StoreUnavailable,
    "database_url": StoreUnavailable,
    "solstice_url": ServiceUnavailable,
}
"""The errors of what the addresses of `running_up.FOUND` name."""

FOR_PASSWORDS: Final = ", which a URL with a password belongs in"
"""What the help of a flag says of its variable: every user of the machine can read flags."""


def with_settings(
    model: type[S], *, serves: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a Typer command one flag per field of `model`.

    The finished object is its first argument. A flag wins over the environment; a wrong value of either is a
    ConfigurationError that names it. A secret has no flag: every user of the machine can read the arguments of a
    running command.

    A command that `serves` nothing takes addresses that were not given from the running `solstice up`.
    """
    flagged = {name: field for name, field in model.model_fields.items() if not _is_secret(field)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def call(**arguments: Any) -> None:
            chosen = {name: arguments.pop(name) for name in flagged}
            options = {name: value for name, value in chosen.items() if value is not None}
            if serves:
                command(load_settings(model, **options), **arguments)
                return
            missing = _missing(model, options)
            settings = found_settings(model, options)
            with _default_named([name for name in missing if name not in settings.model_fields_set]):
                command(settings, **arguments)

        flags = [_parameter(name, field) for name, field in flagged.items()]
        call.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]  # what Typer reads
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *flags]}
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate


def found_settings(model: type[S], given: Mapping[str, Any]) -> S:
    """Return the settings from flags, else the environment, else the running `solstice up`."""
    missing = _missing(model, given)
    up = running_up.read() if missing else None
    from_up = {name: up.setting(name) for name in missing} if up else {}
    return load_settings(model, **from_up, **given)


def _missing(model: type[S], given: Mapping[str, object]) -> Sequence[str]:
    """Return the addresses that only the running `solstice up` can know."""
    fields = model.model_fields
    return [
        name
        for name in running_up.FOUND
        if name in fields and not _is_secret(fields[name]) and not _is_given(name, given)
    ]


def _is_given(name: str, flags: Mapping[str, object]) -> bool:
    return name in flags or any(each.lower() == name for each in os.environ)


@contextmanager
def _default_named(settings: Sequence[str]) -> Iterator[None]:
    """Add to an error that its address is a default.

    If it is one of these settings; and how to name another one.
    """
    try:
        yield
    except (SolsticeError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        named = [name for name in settings if isinstance(error, _NOT_REACHED[name])]
        if named:
            flags = " or ".join(f"--{name.replace('_', '-')} ({name.upper()})" for name in named)
            error.add_note(
                f"This is the default: no 'solstice up' runs with the state directory {state_directory()}. "
                f"Name another place with {flags}, or another directory with SOLSTICE_HOME."
            )
        raise


def load_settings(model: type[S], **values: Any) -> S:
    """Return the settings from `values` and the environment. ConfigurationError says which is wrong and how."""
    try:
        return model(**values)
    except ValidationError as error:
        problems = [
            f"{str(problem['loc'][0]).upper() if problem['loc'] else 'settings'}: {in_words(problem)}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError("; ".join(problems)) from None


def also_flag(name: str) -> JsonDict:
    """For `Field(json_schema_extra=...)`: a second name of the setting's flag."""
    return {_ALSO_FLAG: name}


def age_given(option: str, text: str) -> float:
    """Return an option's age (`30d`, `12h`, `90m`, `60s`) in seconds; ConfigurationError names the option."""
    try:
        return age_seconds(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def read_text(option: str, path: Path) -> str:
    """Return the text of a file that an option names.

    ConfigurationError when it cannot be read, or is no text.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option}: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{option}: {path}: byte {error.start} is not UTF-8") from None


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in {field.annotation, *get_args(field.annotation)}


def _completer(field: FieldInfo) -> Callable[[str], Sequence[str]] | None:
    """Return what completes the values of a setting that has a fixed choice of them."""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if not choices:
        return None
    return lambda incomplete: [each for each in choices if each.startswith(incomplete)]


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    shown = field.get_default(call_default_factory=True, validated_data={})
    flag = name.replace("_", "-")
    is_switch = field.annotation is bool
    extra = field.json_schema_extra
    also = [f"--{extra[_ALSO_FLAG]}"] if isinstance(extra, dict) and _ALSO_FLAG in extra else []
    option = typer.Option(
        f"--{flag}/--no-{flag}" if is_switch else f"--{flag}",
        *also,
        help=f"{field.description} ({name.upper()}{FOR_PASSWORDS if may_hold_secret(field) else ''})",
        show_default=str(shown) if shown not in (None, "") else False,
        rich_help_panel=SETTINGS_PANEL,
        metavar=None if is_switch else "VALUE",
        autocompletion=_completer(field),
    )
    kind = bool | None if is_switch else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
