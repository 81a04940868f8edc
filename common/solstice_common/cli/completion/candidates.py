"""Finds what may stand next in a command line, as its commands declare it.

It uses the public interface of Typer's commands alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

FILES: Final = frozenset({"FILE", "PATH", "FOLDER", "VALUE"})
"""Metavars whose values may be files, when nothing better is known of them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A word that may stand next, and what it means."""

    value: str
    help: str = ""


def candidates(root: Any, program: str, words: Sequence[str], typed: str) -> Sequence[Completion] | None:
    """Return what the last word `typed` may become behind `words`; None: a file."""
    reached = _innermost(root, program, words)
    if reached is None:
        return ()
    context, own_words = reached
    options = [each for each in context.command.get_params(context) if each.param_type_name == "option"]
    if "--" not in own_words:
        name, equals, value = typed.partition("=")
        if equals and name.startswith("--"):
            found = _values(context, _taking_a_value(options, name), value)
            return found and [Completion(f"{name}={each.value}", each.help) for each in found]
        if own_words and (option := _taking_a_value(options, own_words[-1])):
            return _values(context, option, typed)
        if typed.startswith("-"):
            return [each for each in _flags(context, options) if each.value.startswith(typed)]
    if hasattr(context.command, "list_commands"):
        return [each for each in _commands(context) if each.value.startswith(typed)]
    arguments = (each for each in context.command.get_params(context) if each.param_type_name == "argument")
    missing = next((each for each in arguments if each.nargs == -1 or not _is_given(context, each)), None)
    return _values(context, missing, typed)


def _innermost(root: Any, program: str, words: Sequence[str]) -> tuple[Any, Sequence[str]] | None:
    """The context of the last command in the line, and the words behind that command.

    None when a word is no command.
    """
    command, name, left, parent = root, program, list(words), None
    while hasattr(command, "resolve_command"):
        # A group keeps all but the first word behind its options: one word more, and that is what it was given.
        context = command.make_context(name, [*left, "?"], parent=parent, resilient_parsing=True)
        behind = left[len(left) - len(context.args) :]
        if not behind:
            return context, left
        name, found, left = command.resolve_command(context, behind)
        if found is None:
            return None
        command, parent = found, context
    return command.make_context(name, list(left), parent=parent, resilient_parsing=True), left


def _commands(context: Any) -> Iterator[Completion]:
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        if not command.hidden:
            yield Completion(name, _sentence(command.help))


def _flags(context: Any, options: Sequence[Any]) -> Iterator[Completion]:
    for option in options:
        if option.hidden or (_is_given(context, option) and not option.multiple):
            continue
        yield from (
            Completion(name, _sentence(option.help)) for name in (*option.opts, *option.secondary_opts)
        )


def _taking_a_value(options: Sequence[Any], name: str) -> Any:
    return next((each for each in options if not each.is_flag and not each.count and name in each.opts), None)


def _values(context: Any, parameter: Any, typed: str) -> Sequence[Completion] | None:
    if parameter is None:
        return ()
    found = [
        Completion(str(each.value), _sentence(each.help)) for each in parameter.shell_complete(context, typed)
    ]
    kind = parameter.metavar or parameter.name.upper()
    return found or (None if kind in FILES else ())


def _is_given(context: Any, parameter: Any) -> bool:
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name == "COMMANDLINE"


def _sentence(text: str | None) -> str:
    """The first sentence of a help text, in one line and without its full stop."""
    return " ".join((text or "").split()).partition(". ")[0].removesuffix(".")
