"""The language of `if`, beside a plain model of it."""

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.workflow.conditions.expression import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    InvalidExpression,
    read_expression,
)
from solstice_orchestrator.workflow.conditions.facts import RunFacts
from solstice_orchestrator.workflow.conditions.terms import Term, decided
from solstice_orchestrator.workflow.conditions.trigger import Trigger, TriggerEvent

NAMES = ("main", "next", "v1", "")
FACTS = ("event", "branch", "tag", "target_branch", "default_branch", "repository")
TRIGGERS = st.builds(
    Trigger,
    event=st.sampled_from(TriggerEvent),
    branch=st.sampled_from(NAMES),
    tag=st.sampled_from(NAMES),
    target_branch=st.sampled_from(NAMES),
    default_branch=st.sampled_from(NAMES),
    repository=st.sampled_from(NAMES),
)
Model = tuple[str, Callable[[Trigger], bool], int]
"""An expression's text, what it means in plain Python, and how tightly it binds: 0 for ||, 1 for &&, 2."""


def holds(term: Term, trigger: Trigger) -> Term:
    return decided(term, RunFacts(trigger=trigger).known)


def fact(trigger: Trigger, name: str) -> str:
    return str(getattr(trigger, name))


@st.composite
def comparisons(draw: st.DrawFn) -> Model:
    name = draw(st.sampled_from(FACTS))
    texts = list(TriggerEvent) if name == "event" else NAMES
    text, is_equal, quote = draw(st.sampled_from(texts)), draw(st.booleans()), draw(st.sampled_from("'\""))
    space = draw(st.sampled_from(["", " ", "\t "]))
    left, right = name, f"{quote}{text}{quote}"
    if draw(st.booleans()):
        left, right = right, left
    mark = "==" if is_equal else "!="
    return (
        f"{left}{space}{mark}{space}{right}",
        lambda trigger: (fact(trigger, name) == text) is is_equal,
        2,
    )


@st.composite
def globs(draw: st.DrawFn) -> Model:
    name, pattern = draw(st.sampled_from(FACTS)), draw(st.sampled_from(["*", "m*", "*n*", "v?", "main", "x"]))
    return f"glob({name}, '{pattern}')", lambda trigger: fnmatchcase(fact(trigger, name), pattern), 2


def bracketed(model: Model, binding: int) -> str:
    text, _, own = model
    return text if own >= binding else f"({text})"


def either(left: Model, right: Model) -> Model:
    text = f"{bracketed(left, 0)} || {bracketed(right, 1)}"
    return text, lambda trigger: left[1](trigger) or right[1](trigger), 0


def both(left: Model, right: Model) -> Model:
    text = f"{bracketed(left, 1)}&&{bracketed(right, 2)}"
    return text, lambda trigger: left[1](trigger) and right[1](trigger), 1


def negated(model: Model) -> Model:
    return f"!{bracketed(model, 2)}", lambda trigger: not model[1](trigger), 2


EXPRESSIONS = st.recursive(
    comparisons() | globs(),
    lambda inner: st.builds(either, inner, inner) | st.builds(both, inner, inner) | st.builds(negated, inner),
    max_leaves=8,
)


@given(EXPRESSIONS, TRIGGERS)
def test_an_expression_means_what_the_model_means(model: Model, trigger: Trigger) -> None:
    text, meaning, _ = model
    assert holds(read_expression(text), trigger) is meaning(trigger)


@given(st.text(st.sampled_from("()!&|='\"ab, \n\0\u00e9") | st.characters(), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        condition = read_expression(text)
    except InvalidExpression:
        return
    assert isinstance(holds(condition, Trigger(event=TriggerEvent.PUSH)), bool)


WRONG = {
    "": "a value is missing",
    "branch": "'branch' alone is neither true nor false; compare it: branch == 'text', at character 7",
    "'main'": "compare it with == or !=",
    "branch = 'main'": "'=' means nothing here; write ==, at character 8",
    "branch == 'main' & tag == ''": "write &&",
    "branch == 'main' | tag == ''": "write ||",
    "branch == main": "'main' is not known; known: event,",
    "brunch == 'main'": "did you mean 'branch'?",
    "event == 'pull_request'": "there is no event 'pull_request' (did you mean 'change-request'?); known: push, tag,",
    "'pushed' != event": "there is no event 'pushed' (did you mean 'push'?)",
    "branch == 'main": "a string without its end, at character 11",
    "(branch == 'main'": "')' is missing",
    "branch == 'main')": "')' is too much here",
    "branch == 'main' tag == 'v'": "'tag' is too much here; && or ||",
    "branch == 'a' && ": "a value is missing",
    "glob branch": "'(' is missing",
    "glob(branch 'a')": "',' is missing",
    "glob(branch, tag)": "text in quotes belongs here",
    "glob(branch, '[')": "[ without its ]",
    "glob(branch, '')": "an empty pattern fits nothing",
    "system('ls')": "'system' is not known",
    "branch.x == 'a'": "'.' means nothing here",
    "branch == 'a' == 'b'": "'==' is too much here",
    "!" * (MAX_DEPTH + 2) + "branch == ''": f"more than {MAX_DEPTH} deep",
    "(" * (MAX_DEPTH + 2) + "branch == ''": f"more than {MAX_DEPTH} deep",
    "branch == '" + "x" * MAX_CHARACTERS: f"at most {MAX_CHARACTERS} characters",
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.items(), ids=[text[:20] for text in WRONG])
def test_a_mistake_is_named(text: str, sentence: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        read_expression(text)
    assert sentence in str(refused.value)


def test_what_is_inserted_is_compared_and_never_read() -> None:
    condition = read_expression("branch == '{}'", fill=lambda text: text.replace("{}", "' || event != '"))
    assert not holds(condition, Trigger(event=TriggerEvent.PUSH, branch="main"))
    assert holds(condition, Trigger(event=TriggerEvent.PUSH, branch="' || event != '"))
