"""Ids grow with time, in one process and over several."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.identifiers import id_source, lowest_id

UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=50))
def test_ids_grow_for_any_clock(times: list[float]) -> None:
    new_id = id_source(random.Random(1))
    ids = [new_id(at) for at in times]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(UUID_7.fullmatch(each) for each in ids)


def test_a_crowded_millisecond_borrows_from_the_next() -> None:
    new_id = id_source(random.Random(1))
    ids = [new_id(1_800_000_000.0) for _ in range(10_000)]
    assert ids == sorted(set(ids))


def test_a_later_process_makes_later_ids() -> None:
    early, late = id_source(random.Random(2)), id_source(random.Random(1))
    assert early(1_800_000_000.0) < late(1_800_000_000.002)


def test_ids_of_one_moment_differ_in_the_digits_that_people_type() -> None:
    new_id = id_source(random.Random(1))
    ids = [new_id(1_800_000_000.0) for _ in range(4096)]
    assert len({each[:18] for each in ids}) == len({each[-3:] for each in ids}) == 4096


def test_every_millisecond_has_random_bits_of_its_own() -> None:
    new_id = id_source(random.Random(1))
    tails = [new_id(1_800_000_000 + number / 1000)[19:] for number in range(1000)]
    assert len(set(tails)) == 1000
    bits = [int(tail.replace("-", ""), 16) for tail in tails]
    # Each of the 62 behind the variant is set in about half of them.
    assert all(350 < sum(each >> place & 1 for each in bits) < 650 for place in range(62))


def test_two_sources_never_make_the_same_ids_at_one_moment() -> None:
    one, other = id_source(random.Random(1)), id_source(random.Random(2))
    assert not {one(1_800_000_000.0) for _ in range(4096)} & {other(1_800_000_000.0) for _ in range(4096)}


@given(st.floats(0, 4e9))
def test_the_lowest_id_of_a_moment_is_below_its_ids_and_above_earlier_ones(at: float) -> None:
    assert lowest_id(at) <= id_source(random.Random(1))(at)
    assert id_source(random.Random(1))(at) < lowest_id(at + 0.002)


def test_an_id_belongs_to_its_millisecond_also_when_the_one_before_had_ids() -> None:
    new_id = id_source(random.Random(1))
    new_id(0.4995)
    assert lowest_id(0.5) <= new_id(0.5) < lowest_id(0.501)
