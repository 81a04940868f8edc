"""The language of `if`: a closed one, that compares facts about a run with text. Pure.

    either  = both { "||" both }
    both    = single { "&&" single }
    single  = "!" single | "(" either ")" | glob | value ("==" | "!=") value
    glob    = "glob" "(" value "," string ")"
    value   = FACT | string

A string stands in single or double quotes and has no escapes. Nothing is called, read or computed beyond this,
so an expression ends after one look at each of its parts.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from solstice_common.values.globs import InvalidGlob, fits, meaningful
from solstice_orchestrator.workflow.shape import did_you_mean
from solstice_orchestrator.workflow.trigger import Trigger, TriggerEvent

MAX_CHARACTERS: Final = 1000
MAX_DEPTH: Final = 32
"""How deep `(` and `!` may stand in each other."""

_FACTS: Final[Mapping[str, Callable[[Trigger], str]]] = {
    "event": lambda trigger: trigger.event.value,
    "branch": lambda trigger: trigger.branch,
    "tag": lambda trigger: trigger.tag,
    "target_branch": lambda trigger: trigger.target_branch,
    "default_branch": lambda trigger: trigger.default_branch,
    "repository": lambda trigger: trigger.repository,
}
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<mark>==|!=|&&|\|\||[!(),])|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<end>$))"""
)


class InvalidExpression(ValueError):
    """The text is no expression; the message says where and why."""


Fill = Callable[[str], str]
"""Replaces what is named in a string: `{matrix.AXIS}`."""
Condition = Callable[[Trigger], bool]
"""An expression that was read: whether it holds for a run."""


def read_expression(text: str, fill: Fill = str) -> Condition:
    """Return the condition that the text states. Raises InvalidExpression.

    `fill` gets each string, so that what it inserts is compared, and never read as part of the expression.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidExpression(f"an expression has at most {MAX_CHARACTERS} characters")
    reader = _Reader(list(_tokens(text)), fill)
    condition = reader.either(0)
    reader.expect_end()
    return condition


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`mark`, `word`, `string` or `end`."""
    text: str
    column: int

    def problem(self, sentence: str) -> InvalidExpression:
        return InvalidExpression(f"{sentence}, at character {self.column} of the expression")


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while True:
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position:].lstrip()
            bad = _Token("bad", rest[:1], len(text) - len(rest) + 1)
            if bad.text in {"'", '"'}:
                raise bad.problem("a string without its end")
            advice = {"=": "; write ==", "&": "; write &&", "|": "; write ||"}.get(bad.text, "")
            raise bad.problem(f"{bad.text!r} means nothing here{advice}")
        kind = match.lastgroup or "end"
        written = match[kind]
        column = match.start(kind) + 1
        if kind in {"single", "double"}:
            yield _Token("string", written, column - 1)
        else:
            yield _Token(kind, written, column)
        if kind == "end":
            return
        position = match.end()


class _Reader:
    """Reads tokens from left to right, one look ahead."""

    def __init__(self, tokens: list[_Token], fill: Fill) -> None:
        self._tokens, self._fill = iter(tokens), fill
        self._next = next(self._tokens)

    def either(self, depth: int) -> Condition:
        parts = [self._both(depth)]
        while self._skip("||"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else lambda trigger: any(part(trigger) for part in parts)

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._next.problem(f"{self._next.text!r} is too much here; && or || join two comparisons")

    def _both(self, depth: int) -> Condition:
        parts = [self._single(depth)]
        while self._skip("&&"):
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else lambda trigger: all(part(trigger) for part in parts)

    def _single(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise self._next.problem(f"( and ! stand more than {MAX_DEPTH} deep")
        if self._skip("!"):
            negated = self._single(depth + 1)
            return lambda trigger: not negated(trigger)
        if self._skip("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        if self._next.kind == "word" and self._next.text == "glob":
            return self._glob()
        return self._comparison()

    def _glob(self) -> Condition:
        self._take()
        self._expect("(")
        value, _ = self._value()
        self._expect(",")
        token = self._next
        pattern = self._string()
        self._expect(")")
        try:
            patterns = (meaningful(pattern),)
        except InvalidGlob as error:
            raise token.problem(str(error)) from None
        return lambda trigger: fits(value(trigger), patterns)

    def _comparison(self) -> Condition:
        first = self._next
        left, left_fact = self._value()
        is_equal = self._skip("==")
        if not is_equal and not self._skip("!="):
            hint = f"compare it: {first.text} == 'text'" if left_fact else "compare it with == or !="
            raise self._next.problem(f"{first.text!r} alone is neither true nor false; {hint}")
        second = self._next
        right, right_fact = self._value()
        for fact, token in ((left_fact, second), (right_fact, first)):
            if fact == "event" and token.kind == "string" and token.text not in set(TriggerEvent):
                known = ", ".join(TriggerEvent)
                raise token.problem(
                    f"there is no event {token.text!r}{did_you_mean(token.text, list(TriggerEvent))}; known: {known}"
                )
        return lambda trigger: (left(trigger) == right(trigger)) is is_equal

    def _value(self) -> tuple[Callable[[Trigger], str], str | None]:
        """Return what gives the value, and the name of the fact that it is."""
        token = self._next
        if token.kind == "string":
            text = self._string()
            return lambda _: text, None
        if token.kind != "word":
            raise token.problem(
                f"a value is missing: {', '.join(_FACTS)}, or text in quotes"
                if token.kind == "end"
                else f"{token.text!r} stands where a value belongs: {', '.join(_FACTS)}, or text in quotes"
            )
        if token.text not in _FACTS:
            raise token.problem(
                f"{token.text!r} is not known{did_you_mean(token.text, _FACTS)}; known: {', '.join(_FACTS)}, and glob(...)"
            )
        self._take()
        return _FACTS[token.text], token.text

    def _string(self) -> str:
        if self._next.kind != "string":
            raise self._next.problem("text in quotes belongs here")
        return self._fill(self._take().text)

    def _take(self) -> _Token:
        taken, self._next = self._next, next(self._tokens, self._next)
        return taken

    def _skip(self, mark: str) -> bool:
        if self._next.kind == "mark" and self._next.text == mark:
            self._take()
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._next.problem(f"{mark!r} is missing")
