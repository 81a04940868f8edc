from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling import Candidate, assign, rank

LABELS = ("linux", "illumos", "plan9")

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        job_id=st.uuids().map(str),
        label=st.sampled_from(LABELS),
        priority=st.sampled_from(Priority),
        age=st.integers(0, 1000),
    ),
    max_size=30,
    unique_by=(lambda candidate: candidate.age, lambda candidate: candidate.job_id),
)
FREE = st.dictionaries(st.sampled_from(LABELS), st.integers(0, 5))


def candidate(
    job_id: str, priority: Priority = Priority.DEFAULT, *, age: int = 0, label: str = "linux"
) -> Candidate:
    return Candidate(job_id=job_id, label=label, priority=priority, age=age)


def test_the_urgent_go_first_and_among_equals_the_oldest() -> None:
    candidates = [
        candidate("low", Priority.LOW, age=1),
        candidate("young", age=9),
        candidate("old", age=2),
        candidate("critical", Priority.CRITICAL, age=50),
        candidate("high", Priority.HIGH, age=40),
    ]
    chosen = assign(candidates, {"linux": 9}, 9)
    assert [each.job_id for each in chosen] == ["critical", "high", "old", "young", "low"]


def test_a_full_label_does_not_hold_up_another() -> None:
    candidates = [candidate("a", age=1), candidate("b", age=2), candidate("c", age=3, label="illumos")]
    assert [each.job_id for each in assign(candidates, {"linux": 1, "illumos": 1}, 9)] == ["a", "c"]


@given(CANDIDATES, FREE, st.integers(0, 20))
def test_no_slot_is_used_twice_and_none_is_left_while_somebody_fits(
    candidates: list[Candidate], free: dict[str, int], limit: int
) -> None:
    chosen = assign(candidates, free, limit)
    used = Counter(each.label for each in chosen)
    assert len({each.job_id for each in chosen}) == len(chosen) <= limit
    assert all(used[label] <= free.get(label, 0) for label in used)
    if len(chosen) < limit:
        left_out = [each for each in candidates if each not in chosen]
        assert not any(used[each.label] < free.get(each.label, 0) for each in left_out)


@given(CANDIDATES, FREE, st.integers(0, 20))
def test_nobody_is_overtaken_within_a_label(
    candidates: list[Candidate], free: dict[str, int], limit: int
) -> None:
    chosen = assign(candidates, free, limit)
    keys = [(rank(each.priority), each.age) for each in chosen]
    assert keys == sorted(keys)
    for each in chosen:
        ahead = [
            other
            for other in candidates
            if other.label == each.label
            and (rank(other.priority), other.age) < (rank(each.priority), each.age)
        ]
        assert all(other in chosen for other in ahead)
