"""The jobs that a rerun of a failed run repeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import FINAL, JobState
from solstice_orchestrator.domain.needs import DependencyNode
from solstice_orchestrator.domain.reruns import (
    NOT_A_RERUN,
    RerunRefusal,
    RerunScope,
    failed_jobs,
    job_with_dependents,
    rerun_scope_of,
    selected_jobs,
)
from tests.builders import job

GOOD, BAD = JobState.SUCCEEDED, JobState.FAILED


def nodes(**shape: tuple[JobState, tuple[str, ...]]) -> dict[str, DependencyNode]:
    return {name: DependencyNode(state=state, needs=needs) for name, (state, needs) in shape.items()}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param(nodes(a=(GOOD, ()), b=(BAD, ())), frozenset("b"), id="only the failed"),
        pytest.param(
            nodes(a=(BAD, ()), b=(GOOD, ("a",)), c=(GOOD, ("b",))), frozenset("abc"), id="and what needs it"
        ),
        pytest.param(nodes(a=(GOOD, ()), b=(BAD, ("a",))), frozenset("b"), id="not what it needs"),
        pytest.param(
            nodes(a=(BAD, ()), b=(JobState.SKIPPED, ("a",))), frozenset("ab"), id="what was skipped for it"
        ),
        pytest.param(nodes(a=(GOOD, ())), RerunRefusal.NOTHING_FAILED, id="nothing failed"),
        pytest.param(
            nodes(a=(BAD, ()), b=(JobState.RUNNING, ())), RerunRefusal.NOT_ENDED, id="one is still running"
        ),
        pytest.param({}, None, id="it never had jobs"),
    ],
)
def test_what_failed_and_what_needs_it(
    shape: dict[str, DependencyNode], expected: frozenset[str] | RerunRefusal | None
) -> None:
    assert failed_jobs(shape) == expected


@given(
    st.lists(st.tuples(st.sampled_from(sorted(FINAL)), st.sets(st.integers(0, 7))), max_size=8).map(
        lambda rows: {
            str(place): DependencyNode(
                state=state, needs=tuple(str(need) for need in sorted(needs) if need < place)
            )
            for place, (state, needs) in enumerate(rows)
        }
    )
)
def test_the_remaining_jobs_need_only_each_other(workflow: dict[str, DependencyNode]) -> None:
    only = failed_jobs(workflow)
    if not isinstance(only, frozenset):
        return
    assert {name for name, node in workflow.items() if node.state is not GOOD} <= only
    assert not any(set(node.needs) & only for name, node in workflow.items() if name not in only)
    left = selected_jobs([job("true", name=name, needs=node.needs) for name, node in workflow.items()], only)
    assert {each.name for each in left} == only
    assert all(set(each.needs) == set(workflow[each.name].needs) & only for each in left)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param(nodes(a=(GOOD, ()), b=(BAD, ()), c=(GOOD, ())), frozenset("b"), id="that job alone"),
        pytest.param(
            nodes(a=(GOOD, ()), b=(GOOD, ("a",)), c=(GOOD, ("b",)), d=(GOOD, ("c",))),
            frozenset("bcd"),
            id="and what needs it, also one that succeeded",
        ),
        pytest.param(
            nodes(a=(BAD, ()), b=(JobState.SKIPPED, ("a",)), c=(GOOD, ("a",))),
            frozenset("abc"),
            id="and what it needs that did not succeed, with what needs that",
        ),
        pytest.param(
            nodes(b=(BAD, ()), c=(JobState.RUNNING, ())), RerunRefusal.NOT_ENDED, id="one is still running"
        ),
    ],
)
def test_a_job_is_run_again_with_what_belongs_to_it(
    shape: dict[str, DependencyNode], expected: frozenset[str] | RerunRefusal
) -> None:
    assert job_with_dependents("b", shape) == expected


def test_without_a_choice_all_of_it_is_run() -> None:
    jobs = [job("true", name="a"), job("true", name="b", needs=("a",))]
    assert selected_jobs(jobs, None) is jobs


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((None, None), NOT_A_RERUN),
        (("old", None), RerunScope(requested=True, only=None)),
        (("old", '["a", "b"]'), RerunScope(requested=True, only=frozenset("ab"))),
    ],
)
def test_columns_say_how_much_is_run_again(
    columns: tuple[str | None, str | None], expected: RerunScope
) -> None:
    assert rerun_scope_of(*columns) == expected
