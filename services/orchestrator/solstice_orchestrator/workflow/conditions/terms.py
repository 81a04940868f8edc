"""What an expression says, as a value that is decided step by step. Pure.

A term is a truth value, or a tuple that begins with a word:

    ("or", term, ...)  ("and", term, ...)  ("not", term)
    ("equal", value, value)  ("glob", value, pattern)
    ("changed", pattern, ...)  ("failed",)  ("success",)

and a value is text, or a tuple that names a fact: ("branch",), ("input", name), ("result", job, ...).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from solstice_common.messages.states import JobState
from solstice_common.values.globs import fits
from solstice_orchestrator.domain.jobs import run_state

Term = bool | str | tuple["Term", ...]
Fact = tuple[str, ...]
Known = Callable[[Fact], str | bool | None]
"""What a fact is; None: it is not known yet."""


def decided(term: Term, known: Known) -> Term:
    """Return the truth of the term, or the rest of it that waits for facts."""
    if not isinstance(term, tuple):
        return term
    match term:
        case ("or" | "and" as word, *parts):
            return _joined(word == "or", parts, known)
        case ("not", part):
            inner = decided(part, known)
            return (not inner) if isinstance(inner, bool) else ("not", inner)
        case ("equal", left, right):
            left, right = _value(left, known), _value(right, known)
            return (
                left == right if isinstance(left, str) and isinstance(right, str) else ("equal", left, right)
            )
        case ("glob", value, str() as pattern):
            text = _value(value, known)
            return fits(text, (pattern,)) if isinstance(text, str) else ("glob", text, pattern)
        case _:
            truth = known(_fact(term))
            return term if truth is None else bool(truth)


def facts_of(term: Term) -> Iterator[Fact]:
    """Yield the facts that the term looks at."""
    match term:
        case ("or" | "and" | "not", *parts):
            for part in parts:
                yield from facts_of(part)
        case ("equal", left, right):
            yield from (_fact(side) for side in (left, right) if isinstance(side, tuple))
        case ("glob", value, _):
            yield from facts_of(value)
        case tuple():
            yield _fact(term)
        case _:
            pass


def with_facts(term: Term, changed: Callable[[Fact], Fact]) -> Term:
    """Return the term with each of its facts replaced."""
    match term:
        case ("or" | "and" | "not" as word, *parts):
            return (word, *(with_facts(part, changed) for part in parts))
        case ("equal", left, right):
            return ("equal", with_facts(left, changed), with_facts(right, changed))
        case ("glob", value, pattern):
            return ("glob", with_facts(value, changed), pattern)
        case tuple():
            return changed(_fact(term))
        case _:
            return term


def written_later(term: Term, written: str) -> str:
    """Return the rest of a term as text, for the store.

    `written` is the expression, for people.
    """
    return json.dumps([written, term], separators=(",", ":"))


def unmet_by_results(later: str, states: Mapping[str, JobState]) -> str:
    """Return the expression when it does not hold after such ends, else nothing.

    `later` is from `written_later`. A job that is not part of the run has succeeded in an earlier one.
    """
    written, term = json.loads(later)

    def known(fact: Fact) -> str | None:
        word, *names = fact
        ends = [states.get(name, JobState.SUCCEEDED) for name in names]
        return run_state(ends).value if word == "result" else None

    return "" if decided(_frozen(term), known) is True else str(written)


def _frozen(part: Any) -> Term:
    return tuple(map(_frozen, part)) if isinstance(part, list) else part


def _joined(is_or: bool, parts: list[Term], known: Known) -> Term:  # noqa: FBT001  which of the two words it is
    rest: list[Term] = []
    for part in parts:
        truth = decided(part, known)
        if truth is is_or:
            return is_or
        if not isinstance(truth, bool):
            rest.append(truth)
    if not rest:
        return not is_or
    return rest[0] if len(rest) == 1 else ("or" if is_or else "and", *rest)


def _value(value: Term, known: Known) -> Term:
    if not isinstance(value, tuple):
        return value
    found = known(_fact(value))
    return value if found is None else str(found)


def _fact(term: tuple[Term, ...]) -> Fact:
    return tuple(str(part) for part in term)
