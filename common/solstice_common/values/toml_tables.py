"""Reads a configuration file in TOML by a model, naming every mistake. Pure."""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from solstice_common.errors import ConfigurationError
from solstice_common.values.validation import in_words


class TomlTable(BaseModel):
    """A table of the file; an unknown key is a mistake.

    The mistake comes with a hint at the key that was probably meant.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, table: Any) -> Any:
        if not isinstance(table, Mapping):
            raise ValueError("must be a table")  # noqa: TRY004  pydantic turns only ValueError into a mistake of the file
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [name for name in table if name not in known]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ":"
            raise ValueError(f"{unknown[0]!r} is no key here{hint} known are {', '.join(known)}")
        return table


FileT = TypeVar("FileT", bound=TomlTable)
Explain = Callable[[ErrorDetails], str | None]


def parse_toml(
    content: bytes, file: type[FileT], *, explain: Explain = lambda _: None, context: object = None
) -> FileT:
    """Return the whole file; `context` is for its validators.

    ConfigurationError has one line per mistake, and repeats no value of the file. `explain` may give the
    sentence that follows a key.
    """
    try:
        return file.model_validate(tomllib.loads(content.decode("utf-8")), context=context)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 at byte {error.start}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"is not TOML: {error}") from None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
    lines = [
        f"{_key(problem['loc'])}{explain(problem) or _sentence(problem)}"
        for problem in problems
        if not _is_echo(problem, problems)
    ]
    raise ConfigurationError(
        lines[0] if len(lines) == 1 else "\n  ".join((f"{len(lines)} mistakes:", *lines))
    )


def _is_echo(problem: ErrorDetails, problems: Sequence[ErrorDetails]) -> bool:
    """Whether a list is reported as empty only because its items are wrong."""
    location = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(location) and other["loc"][: len(location)] == location for other in problems
    )


def _key(location: Iterable[int | str]) -> str:
    key = ""
    for part in location:
        if part != "[key]":
            key += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if key else part
    return f"{key}: " if key else ""


def _sentence(problem: ErrorDetails) -> str:
    if problem["type"] == "too_short":
        return "must not be empty: leave it out for the default, if it has one"
    words = in_words(problem)
    return words[0].lower() + words[1:]
