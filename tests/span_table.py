"""Holds the spans that tests see to those that are declared."""

import re
from collections.abc import Iterable, Mapping
from functools import cache

from solstice_common.tracing.spans import SpanType


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{[^}]*\\\}", ".+", re.escape(name)))


def type_of(name: str, kind: int) -> SpanType:
    """The declared kind of a span; that of jobs last, which may have any name."""
    fitting = [
        each
        for each in SpanType
        if each.value.kind.value == kind and _pattern(each.value.name).fullmatch(name)
    ]
    assert fitting, f"no declared span has the name {name!r} and the kind {kind}"
    return min(fitting, key=lambda each: each.value.name.startswith("{"))


def undeclared(kind: SpanType, attributes: Mapping[str, object]) -> Iterable[str]:
    """The attributes that the declaration of the span lacks."""
    return set(attributes) - set(kind.value.attributes)
