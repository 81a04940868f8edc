"""Jobs wait for their needs, are skipped, or continue after any end."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import FINAL, JobState
from solstice_orchestrator.domain.jobs import JobCondition, Reason
from solstice_orchestrator.domain.needs import DependencyNode, unblock

BLOCKED, RUNNING, WAITING = JobState.BLOCKED, JobState.RUNNING, JobState.WAITING
SUCCEEDED, FAILED, SKIPPED = JobState.SUCCEEDED, JobState.FAILED, JobState.SKIPPED


def nodes(**jobs: tuple[JobState, tuple[str, ...]]) -> Mapping[str, DependencyNode]:
    """Jobs with their needs.

    One whose name begins with `always` runs after any end of these.
    """
    return {
        name: DependencyNode(
            state=state,
            needs=needs,
            condition=JobCondition.ALWAYS if name.startswith("always") else JobCondition.SUCCESS,
        )
        for name, (state, needs) in jobs.items()
    }


def moved(graph: Mapping[str, DependencyNode]) -> dict[str, JobState]:
    return {each.name: each.state for each in unblock(graph)}


def test_a_job_waits_for_all_that_it_needs() -> None:
    graph = nodes(
        a=(SUCCEEDED, ()),
        b=(RUNNING, ()),
        c=(BLOCKED, ("a",)),
        d=(BLOCKED, ("a", "b")),
    )
    assert moved(graph) == {"c": WAITING}


def test_one_bad_end_is_enough_and_reaches_all_the_way() -> None:
    graph = nodes(
        z=(BLOCKED, ("y",)),
        y=(BLOCKED, ("a", "b")),
        a=(RUNNING, ()),
        b=(JobState.CANCELLED, ()),
    )
    assert moved(graph) == {"y": SKIPPED, "z": SKIPPED}


@pytest.mark.parametrize("end", sorted(FINAL))
def test_always_means_however_its_needs_ended(end: JobState) -> None:
    assert moved(nodes(a=(end, ()), always=(BLOCKED, ("a",)))) == {"always": WAITING}


def test_always_waits_for_the_last_of_its_needs_even_after_a_failure() -> None:
    assert moved(nodes(a=(FAILED, ()), b=(RUNNING, ()), always=(BLOCKED, ("a", "b")))) == {}


def test_what_is_skipped_lets_those_go_that_always_run() -> None:
    graph = nodes(
        always=(BLOCKED, ("middle",)),
        last=(BLOCKED, ("always",)),
        middle=(BLOCKED, ("a",)),
        a=(FAILED, ()),
    )
    assert moved(graph) == {"middle": SKIPPED, "always": WAITING}


def test_after_one_that_always_runs_its_own_end_counts() -> None:
    graph = nodes(a=(FAILED, ()), always=(SUCCEEDED, ("a",)), last=(BLOCKED, ("always",)))
    assert moved(graph) == {"last": WAITING}


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, DependencyNode]:
    """Jobs that need earlier ones, as they are when a run is planned."""
    names = [f"job{number}" for number in range(draw(st.integers(0, 8)))]
    graph: dict[str, DependencyNode] = {}
    for index, name in enumerate(names):
        needs = tuple(draw(st.lists(st.sampled_from(names[:index]), unique=True))) if index else ()
        graph[name] = DependencyNode(
            state=BLOCKED if needs else WAITING, needs=needs, condition=draw(st.sampled_from(JobCondition))
        )
    order = draw(st.permutations(names))
    return {name: graph[name] for name in order}


@given(graphs(), st.data())
def test_every_job_ends_or_may_start_and_none_starts_before_its_needs_have_ended(
    graph: dict[str, DependencyNode], data: st.DataObject
) -> None:
    started: set[str] = set()
    while True:
        for each in unblock(graph):
            node = graph[each.name]
            ends = [graph[need].state for need in node.needs]
            # Jobs that the same call of `unblock` skipped count as ended.
            graph[each.name] = replace(node, state=each.state)
            if each.state is WAITING:
                started.add(each.name)
                assert all(end.final for end in ends)
                assert node.condition is JobCondition.ALWAYS or set(ends) <= {SUCCEEDED}
            else:
                assert node.condition is JobCondition.SUCCESS
                assert any(end.final and end is not SUCCEEDED for end in ends)
        assert unblock(graph) == []
        free = [name for name, node in graph.items() if node.state is WAITING]
        if not free:
            break
        ended = data.draw(st.sampled_from(free))
        end = data.draw(st.sampled_from(sorted(FINAL - {SKIPPED})))
        graph[ended] = replace(graph[ended], state=end)
    assert all(node.state.final for node in graph.values())
    always = {name for name, node in graph.items() if node.needs and node.condition is JobCondition.ALWAYS}
    assert always <= started


@pytest.mark.parametrize("end", sorted(FINAL))
def test_who_may_start_has_its_needs_met_and_who_is_skipped_has_one_that_failed(end: JobState) -> None:
    reasons = {each.state: each.reason for each in unblock(nodes(a=(end, ()), b=(BLOCKED, ("a",))))}
    assert reasons == ({WAITING: Reason.NEEDS_MET} if end is SUCCEEDED else {SKIPPED: Reason.NEEDS_FAILED})


def test_what_says_nothing_else_runs_only_after_success() -> None:
    graph = {"a": DependencyNode(state=FAILED, needs=()), "b": DependencyNode(state=BLOCKED, needs=("a",))}
    assert moved(graph) == {"b": SKIPPED}
