from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.jobs import JobState
from solstice_orchestrator.needs import Node, unblock


def nodes(**jobs: tuple[JobState, tuple[str, ...]]) -> Mapping[str, Node]:
    return {name: Node(state=state, needs=needs) for name, (state, needs) in jobs.items()}


def test_a_job_waits_for_all_that_it_needs() -> None:
    graph = nodes(
        a=(JobState.SUCCEEDED, ()),
        b=(JobState.RUNNING, ()),
        c=(JobState.BLOCKED, ("a",)),
        d=(JobState.BLOCKED, ("a", "b")),
    )
    assert [(each.name, each.state) for each in unblock(graph)] == [("c", JobState.WAITING)]


def test_one_bad_end_is_enough_and_reaches_all_the_way() -> None:
    graph = nodes(
        z=(JobState.BLOCKED, ("y",)),
        y=(JobState.BLOCKED, ("a", "b")),
        a=(JobState.RUNNING, ()),
        b=(JobState.CANCELLED, ()),
    )
    assert {each.name: each.state for each in unblock(graph)} == {
        "y": JobState.SKIPPED,
        "z": JobState.SKIPPED,
    }


@given(st.data())
def test_nothing_stays_blocked_behind_what_has_ended(data: st.DataObject) -> None:
    names = [f"job{number}" for number in range(data.draw(st.integers(0, 7)))]
    graph: dict[str, Node] = {}
    for index, name in enumerate(names):
        needs = tuple(data.draw(st.lists(st.sampled_from(names[:index]), unique=True))) if index else ()
        states = [JobState.BLOCKED] if needs else [JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING]
        graph[name] = Node(state=data.draw(st.sampled_from(states)), needs=needs)
    moved = {each.name: each.state for each in unblock(graph)}
    after = {name: moved.get(name, node.state) for name, node in graph.items()}
    for name, node in graph.items():
        ends = [after[need] for need in node.needs]
        if node.state is not JobState.BLOCKED:
            assert name not in moved
        elif any(end.final and end is not JobState.SUCCEEDED for end in ends):
            assert after[name] is JobState.SKIPPED
        elif all(end is JobState.SUCCEEDED for end in ends):
            assert after[name] is JobState.WAITING
        else:
            assert after[name] is JobState.BLOCKED
