"""The answer of a consumer about its held messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.jetstream.jetstream_presence import HeldMessages, held_in, presence_answer


@given(
    st.sets(st.integers(1, 50) | st.integers(1, 2**60)),
    st.text(),
    st.none() | st.integers(0, 10**6).map(lambda milliseconds: milliseconds / 1000),
)
def test_what_is_answered_is_read_again(sequences: set[int], reader: str, lease: float | None) -> None:
    found = held_in(presence_answer(sequences, reader, lease))
    assert found == HeldMessages(
        count=len(sequences), sequences=frozenset(sequences), reader=reader, lease_seconds=lease
    )


def test_neighbours_take_one_range_however_many_they_are() -> None:
    assert len(presence_answer(range(1, 100_000), "")) < 100


def test_an_older_process_says_only_how_many() -> None:
    assert held_in(b'{"held": 3}') == HeldMessages(count=3)


@pytest.mark.parametrize(
    "data",
    [
        b'{"held": -3}',
        b'{"held": "3"}',
        b'{"held": 3, "sequences": [[1]]}',
        b'{"held": 3, "sequences": 7}',
        b'{"held": 3, "sequences": [[1, 1000000000000]]}',
        b'{"held": 3, "sequences": [[1, 2000000], [2000000, 1]]}',
        b'{"held": 3, "sequences": [["a", "b"]]}',
        b'{"held": 3, "reader": 1}',
        b'{"held": 3, "lease_seconds": -1}',
        b'{"held": 3, "lease_seconds": NaN}',
        b'{"held": 3, "lease_seconds": Infinity}',
        b'{"held": 3, "lease_seconds": "30"}',
        b"[]",
        b"",
    ],
)
def test_an_answer_that_cannot_be_read_counts_as_nothing_held(data: bytes) -> None:
    assert held_in(data) == HeldMessages()
