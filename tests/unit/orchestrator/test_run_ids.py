import random
import re

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.identifiers import id_source

UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=50))
def test_ids_grow_whatever_the_clock_does(times: list[float]) -> None:
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
