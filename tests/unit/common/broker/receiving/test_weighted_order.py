"""Priority queues are served in weighted order, and none starves."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.receiving.weighted_order import VirtualTimes, next_queues
from solstice_common.messages import Priority
from solstice_common.topology import WEIGHTS

CLASSES: Mapping[str, int] = {each.value: weight for each, weight in WEIGHTS.items()}
FULL = dict.fromkeys(CLASSES, 1_000)
waitings = st.fixed_dictionaries({each: st.integers(0, 5) for each in CLASSES})
weights = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 12), min_size=1)


def queues_of_next(count: int, waiting: Mapping[str, int], times: VirtualTimes | None = None) -> list[str]:
    chosen, _ = next_queues(times or VirtualTimes(), CLASSES, waiting, count)
    return list(chosen)


def test_full_queues_share_by_their_weights_and_smoothly() -> None:
    round_of_all = queues_of_next(15, FULL)
    assert round_of_all[:7] == ["critical", "high", "default", "low", "critical", "critical", "high"]
    assert Counter(round_of_all) == CLASSES
    assert Counter(queues_of_next(150, FULL)) == {each: 10 * weight for each, weight in CLASSES.items()}


def test_a_queue_alone_is_taken_from_with_any_weight() -> None:
    assert queues_of_next(5, {"low": 3}) == ["low"] * 3
    assert queues_of_next(0, FULL) == []
    assert queues_of_next(5, dict.fromkeys(CLASSES, 0)) == []
    assert queues_of_next(2, {"of another": 3}) == []


def test_a_critical_message_is_next_however_long_low_had_all_to_itself() -> None:
    _, times = next_queues(VirtualTimes(), CLASSES, {"low": 10_000}, 10_000)
    assert queues_of_next(2, {"low": 10, "critical": 1}, times) == ["critical", "low"]


def test_nothing_is_saved_up_while_a_queue_is_empty() -> None:
    _, times = next_queues(VirtualTimes(), CLASSES, {"low": 10_000}, 10_000)
    _, times = next_queues(times, CLASSES, {"low": 10_000, "high": 10_000}, 3_000)
    assert Counter(queues_of_next(150, FULL, times))["critical"] <= 81


@given(st.lists(st.tuples(waitings, st.integers(1, 6)), max_size=40))
def test_as_many_are_taken_as_there_are_up_to_the_limit(rounds: list[tuple[dict[str, int], int]]) -> None:
    times = VirtualTimes()
    for waiting, limit in rounds:
        chosen, times = next_queues(times, CLASSES, waiting, limit)
        assert len(chosen) == min(limit, sum(waiting.values()))
        assert all(count <= waiting[each] for each, count in Counter(chosen).items())


@given(weights, st.data())
def test_no_queue_starves_beside_any_others(given_weights: dict[str, int], data: st.DataObject) -> None:
    """Between two of a full queue, another has at most its share and one."""
    always = data.draw(st.sampled_from(sorted(given_weights)))
    others = st.fixed_dictionaries({each: st.integers(0, 30) for each in given_weights})
    times, order = VirtualTimes(), list[str]()
    for waiting in data.draw(st.lists(others, min_size=5, max_size=40)):
        chosen, times = next_queues(
            times, given_weights, waiting | {always: 1_000}, data.draw(st.integers(1, 9))
        )
        order += chosen
    places = [-1, *(place for place, each in enumerate(order) if each == always), len(order)]
    for before, after in pairwise(places):
        for each, count in Counter(order[before + 1 : after]).items():
            assert count <= given_weights[each] / given_weights[always] + 1


@given(weights, st.integers(1, 4))
def test_full_queues_have_exactly_their_shares_in_each_round(
    given_weights: dict[str, int], rounds: int
) -> None:
    full = dict.fromkeys(given_weights, 10_000)
    order, _ = next_queues(VirtualTimes(), given_weights, full, rounds * sum(given_weights.values()))
    assert Counter(order) == {each: rounds * weight for each, weight in given_weights.items()}


@given(st.lists(st.integers(1, 8), max_size=12))
def test_it_does_not_matter_how_many_are_asked_for_at_once(limits: list[int]) -> None:
    times, order = VirtualTimes(), list[str]()
    for limit in limits:
        chosen, times = next_queues(times, CLASSES, FULL, limit)
        order += chosen
    assert order == queues_of_next(sum(limits), FULL)


def test_more_urgent_classes_weigh_more() -> None:
    assert list(WEIGHTS) == list(Priority)
    assert list(CLASSES.values()) == sorted(set(CLASSES.values()), reverse=True)
