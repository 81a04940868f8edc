"""Items in lockstep have the results that each has alone."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_forge.decisions.lockstep import Steps, lockstep, walk


def counted_steps(count: int, *, fails: bool = False) -> Steps[int]:
    for _ in range(count):
        yield
    if fails:
        raise ValueError(count)
    return count


@given(st.lists(st.integers(0, 9)))
def test_each_makes_what_it_makes_alone(heights: list[int]) -> None:
    assert lockstep([counted_steps(count) for count in heights]) == [
        walk(counted_steps(each)) for each in heights
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_who_falls_falls_alone(climbs: list[tuple[int, bool]]) -> None:
    outcomes = lockstep([counted_steps(count, fails=fails) for count, fails in climbs])
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [fails for _, fails in climbs]
    assert [count for (count, fails) in climbs if not fails] == [
        outcome for outcome in outcomes if not isinstance(outcome, Exception)
    ]


def test_the_first_step_of_each_comes_before_the_second_of_any() -> None:
    steps: list[tuple[int, str]] = []

    def walking(step: int, name: str) -> Steps[None]:
        for number in range(step):
            steps.append((number, name))
            yield

    lockstep([walking(3, "a"), walking(1, "b"), walking(2, "c")])
    assert steps == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "c"), (2, "a")]
