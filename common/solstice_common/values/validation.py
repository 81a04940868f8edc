"""Explains in words of our own why pydantic refused a value. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import ErrorDetails

Context = Mapping[str, Any]


def _one_of(context: Context) -> str:
    known = str(context["expected"]).replace("'", "").replace(" or ", ", ")
    return f"must be one of {known}"


_WORDS: Final[Mapping[str, Callable[[Context], str]]] = MappingProxyType(
    {
        "enum": _one_of,
        "literal_error": _one_of,
        "missing": lambda _: "is missing",
        "extra_forbidden": lambda _: "is not known here",
        "int_parsing": lambda _: "must be a whole number",
        "int_parsing_size": lambda _: "is too large a number",
        "int_type": lambda _: "must be a whole number",
        "int_from_float": lambda _: "must be a whole number",
        "float_parsing": lambda _: "must be a number",
        "float_type": lambda _: "must be a number",
        "finite_number": lambda _: "must be a finite number",
        "bool_parsing": lambda _: "must be true or false",
        "bool_type": lambda _: "must be true or false",
        "string_unicode": lambda _: "must be text in UTF-8",
        "string_type": lambda _: "must be text",
        "greater_than": lambda context: f"must be more than {context['gt']:g}",
        "greater_than_equal": lambda context: f"must be at least {context['ge']:g}",
        "less_than": lambda context: f"must be less than {context['lt']:g}",
        "less_than_equal": lambda context: f"must be at most {context['le']:g}",
        "string_too_short": lambda context: (
            "must not be empty"
            if context["min_length"] == 1
            else f"must have at least {context['min_length']} characters"
        ),
        "string_pattern_mismatch": lambda context: f"must have the form {context['pattern']}",
        "string_too_long": lambda context: f"must have at most {context['max_length']} characters",
    }
)


def in_words(problem: ErrorDetails) -> str:
    """Return the explanation, to follow a name: `must be at least 1`."""
    say = _WORDS.get(problem["type"])
    if say is not None:
        return say(problem.get("ctx", {}))
    return problem["msg"].removeprefix("Value error, ")
