"""The language of `if`: a closed one, that compares facts about a run with text. Pure.

    either  = both { "||" both }
    both    = single { "&&" single }
    single  = "!" single | "(" either ")" | glob | changed | status | input | value ("==" | "!=") value
    glob    = "glob" "(" value "," string ")"
    changed = "changed" "(" string { "," string } ")"
    status  = "failed" | "success" | "always"                        of a step alone
    input   = "input" "(" string ")"                                 alone it is a boolean one
    value   = FACT | input | string | "result" "(" string ")"

A string stands in single or double quotes and has no escapes. Nothing is called, read or computed beyond this,
so an expression ends after one look at each of its parts.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from solstice_common.messages.states import FINAL
from solstice_common.values.globs import InvalidGlob, meaningful
from solstice_orchestrator.workflow.conditions.facts import FACTS
from solstice_orchestrator.workflow.conditions.inputs import NO_INPUTS, InputKind, InputSpec
from solstice_orchestrator.workflow.conditions.terms import Term
from solstice_orchestrator.workflow.conditions.trigger import TriggerEvent
from solstice_orchestrator.workflow.shape import did_you_mean

MAX_CHARACTERS: Final = 1000
MAX_DEPTH: Final = 32
"""How deep `(` and `!` may stand in each other."""
MAX_PATTERNS: Final = 20
"""How many patterns `changed` takes."""

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<mark>==|!=|&&|\|\||[!(),])|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<end>$))"""
)


class InvalidExpression(ValueError):
    """The text is no expression; the message says where and why."""


Fill = Callable[[str], str]
"""Replaces what is named in a string: `{matrix.AXIS}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What an expression can name where it stands."""

    inputs: Mapping[str, InputSpec] = field(default_factory=lambda: NO_INPUTS)
    needs: Collection[str] = ()
    """The jobs whose `result` it may compare."""
    in_step: bool = False
    """Whether it may say how the steps before it ended."""

    @property
    def values(self) -> Sequence[str]:
        """What a value may be, beside text."""
        return (*FACTS, *(["input(...)"] if self.inputs else []), *(["result(...)"] if self.needs else []))

    @property
    def truths(self) -> Sequence[str]:
        """What is true or false by itself."""
        return ("glob(...)", "changed(...)", *(STATUSES if self.in_step else ()))


STATUSES: Final = ("failed", "success", "always")
"""How the steps before a step ended."""
RESULTS: Final = tuple(sorted(state.value for state in FINAL))
PLAIN: Final = Vocabulary()


def read_expression(text: str, vocabulary: Vocabulary = PLAIN, fill: Fill = str) -> Term:
    """Return what the text says. Raises InvalidExpression.

    `fill` gets each string, so that what it inserts is compared, and never read as part of the expression.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidExpression(f"an expression has at most {MAX_CHARACTERS} characters")
    reader = _Reader(list(_tokens(text)), vocabulary, fill)
    term = reader.either(0)
    reader.expect_end()
    return term


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

    def __init__(self, tokens: list[_Token], vocabulary: Vocabulary, fill: Fill) -> None:
        self._tokens, self._vocabulary, self._fill = iter(tokens), vocabulary, fill
        self._next = next(self._tokens)

    def either(self, depth: int) -> Term:
        parts = [self._both(depth)]
        while self._skip("||"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else ("or", *parts)

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._next.problem(f"{self._next.text!r} is too much here; && or || join two comparisons")

    def _both(self, depth: int) -> Term:
        parts = [self._single(depth)]
        while self._skip("&&"):
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else ("and", *parts)

    def _single(self, depth: int) -> Term:
        if depth > MAX_DEPTH:
            raise self._next.problem(f"( and ! stand more than {MAX_DEPTH} deep")
        if self._skip("!"):
            return ("not", self._single(depth + 1))
        if self._skip("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        word = self._next.text if self._next.kind == "word" else ""
        if word == "glob":
            return self._glob()
        if word == "changed":
            return ("changed", *self._strings(MAX_PATTERNS, self._pattern))
        if self._vocabulary.in_step and word in STATUSES:
            self._take()
            return True if word == "always" else (word,)
        return self._comparison()

    def _glob(self) -> Term:
        self._take()
        self._expect("(")
        value = self._value()
        self._expect(",")
        pattern = self._pattern()
        self._expect(")")
        return ("glob", value, pattern)

    def _pattern(self) -> str:
        token, pattern = self._next, self._string()
        try:
            return meaningful(pattern)
        except InvalidGlob as error:
            raise token.problem(str(error)) from None

    def _strings(self, most: int, read: Callable[[], str]) -> list[str]:
        """Read the strings in parentheses after a word."""
        word = self._take()
        self._expect("(")
        found = [read()]
        while self._skip(","):
            found.append(read())
        if len(found) > most:
            raise word.problem(f"{word.text} takes {most}, not {len(found)}")
        self._expect(")")
        return found

    def _comparison(self) -> Term:
        first = self._next
        left = self._value()
        is_equal = self._skip("==")
        if not is_equal and not self._skip("!="):
            if self._is_boolean(left):
                return ("equal", left, "true")
            hint = (
                f"compare it: {first.text} == 'text'" if first.kind == "word" else "compare it with == or !="
            )
            raise self._next.problem(f"{first.text!r} alone is neither true nor false; {hint}")
        second = self._next
        right = self._value()
        for fact, token in ((left, second), (right, first)):
            if token.kind == "string":
                self._check(fact, token)
        equal: Term = ("equal", left, right)
        return equal if is_equal else ("not", equal)

    def _is_boolean(self, value: Term) -> bool:
        match value:
            case ("input", str() as name):
                return self._vocabulary.inputs[name].type is InputKind.BOOLEAN
            case _:
                return False

    def _check(self, fact: Term, token: _Token) -> None:
        """Refuse the comparison of a fact with text that it never is."""
        known: Sequence[str]
        match fact:
            case ("event",):
                what, known = "event", list(TriggerEvent)
            case ("result", _):
                what, known = "result", RESULTS
            case ("input", str() as name):
                what, known = f"value of the input {name!r}", self._vocabulary.inputs[name].choices
            case _:
                return
        text = self._fill(token.text)
        if known and text not in known:
            raise token.problem(
                f"there is no {what} {text!r}{did_you_mean(text, known)}; known: {', '.join(known)}"
            )

    def _value(self) -> Term:
        token, vocabulary = self._next, self._vocabulary
        if token.kind == "string":
            return self._string()
        known = ", ".join(vocabulary.values)
        if token.kind != "word":
            raise token.problem(
                f"a value is missing: {known}, or text in quotes"
                if token.kind == "end"
                else f"{token.text!r} stands where a value belongs: {known}, or text in quotes"
            )
        if token.text == "input":
            return ("input", *self._strings(1, lambda: self._named("input", vocabulary.inputs)))
        if token.text == "result":
            return ("result", *self._strings(1, lambda: self._named("needed job", vocabulary.needs)))
        if token.text not in FACTS:
            raise token.problem(
                f"{token.text!r} is not known{did_you_mean(token.text, (*FACTS, 'glob', 'changed', 'input', 'result'))}; "
                f"known: {', '.join((*vocabulary.values, *vocabulary.truths))}"
            )
        self._take()
        return (token.text,)

    def _named(self, what: str, known: Collection[str]) -> str:
        token, name = self._next, self._string()
        if name not in known:
            listed = f"; known: {', '.join(known)}" if known else ""
            raise token.problem(f"there is no {what} {name!r} here{did_you_mean(name, known)}{listed}")
        return name

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
