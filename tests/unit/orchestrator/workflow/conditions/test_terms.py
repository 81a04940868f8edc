"""Terms are decided as their facts become known, and survive the store."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import FINAL, JobState
from solstice_orchestrator.workflow.conditions.terms import (
    Fact,
    Known,
    Term,
    decided,
    unmet_by_results,
    with_facts,
    written_later,
)

NAMES = ("a", "b", "c")
ENDS = sorted(FINAL)
FACTS = st.sampled_from(NAMES).map(lambda name: ("result", name))
ATOMS = st.tuples(st.just("equal"), FACTS, st.sampled_from(ENDS)) | st.tuples(
    st.just("glob"), FACTS, st.sampled_from(["*ed", "fail*", "x"])
)
TERMS: st.SearchStrategy[Term] = st.recursive(
    ATOMS | st.booleans(),
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("or", *parts))
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("and", *parts))
    ),
    max_leaves=8,
)
STATES = st.fixed_dictionaries({name: st.sampled_from(ENDS) for name in NAMES})


def known_among(states: dict[str, JobState], names: set[str]) -> Known:
    def known(fact: Fact) -> str | None:
        return states[fact[1]].value if fact[1] in names else None

    return known


@given(TERMS, STATES, st.sets(st.sampled_from(NAMES)))
def test_what_is_decided_in_two_stages_is_decided_as_at_once(
    term: Term, states: dict[str, JobState], first: set[str]
) -> None:
    whole = decided(term, known_among(states, set(NAMES)))
    assert isinstance(whole, bool)
    rest = decided(term, known_among(states, first))
    assert decided(rest, known_among(states, set(NAMES))) is whole
    assert (unmet_by_results(written_later(rest, "if"), states) == "") is whole


def test_a_matrix_has_the_result_of_its_worst_job_and_one_from_an_earlier_run_succeeded() -> None:
    term = with_facts(("equal", ("result", "test"), "failed"), lambda _: ("result", "a", "b"))
    later = written_later(term, "if")
    states = {"a": JobState.SUCCEEDED, "b": JobState.FAILED}
    assert unmet_by_results(later, states) == ""
    assert unmet_by_results(later, {**states, "b": JobState.SKIPPED}) == "if"
    assert unmet_by_results(written_later(("equal", ("result", "z"), "succeeded"), "if"), states) == ""
