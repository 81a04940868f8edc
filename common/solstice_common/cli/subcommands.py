"""Supports commands of several words that also work without the second one.

For example `solstice workers pause`.
"""

import typer

from solstice_common.errors import ConfigurationError


def stands_alone(context: typer.Context) -> bool:
    """Whether no second word was given.

    ConfigurationError when options precede a second word: they would be ignored silently.
    """
    word = context.invoked_subcommand
    if word is not None and any(_is_given(context, name) for name in context.params):
        raise ConfigurationError(f"write options behind the word: solstice {context.info_name} {word} ...")
    return word is None


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
