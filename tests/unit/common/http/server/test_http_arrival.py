"""The counting of a request's bytes and fields, and their bounds."""

import pytest

from solstice_common.http.server.arriving_request import ArrivingRequest, framing_problem, is_repeated
from solstice_common.http.server.bounds import FIELDS, HEAD_BYTES
from solstice_common.http.server.refusals import LARGE_HEAD, TINY_CHUNKS


def arriving() -> ArrivingRequest:
    """A request whose head is complete."""
    arrival = ArrivingRequest()
    arrival.begin()
    arrival.end_head()
    return arrival


def test_fields_of_head_and_trailers_count_together_and_separately_for_each_request() -> None:
    arrival = ArrivingRequest()
    for _ in range(2):
        arrival.begin()
        assert [arrival.field(6) for _ in range(FIELDS - 1)] == [None] * (FIELDS - 1)
        arrival.end_head()
        assert arrival.field(6) is None
        assert arrival.field(6) is LARGE_HEAD
        arrival.end()


def test_only_trailers_count_as_bytes_of_trailers() -> None:
    arrival = ArrivingRequest()
    arrival.begin()
    assert arrival.field(HEAD_BYTES + 1) is None  # measured with the rest of its head
    arrival.end_head()
    assert arrival.field(HEAD_BYTES) is None
    assert arrival.field(1) is LARGE_HEAD


def test_a_head_grows_until_it_ends_and_the_next_one_begins_again() -> None:
    arrival = ArrivingRequest()
    arrival.receive(10)
    arrival.begin()
    assert arrival.measure_head(10)
    arrival.receive(5)
    assert not arrival.measure_head(5)
    assert arrival.head_bytes == 15
    arrival.receive(5)
    arrival.end_head()
    arrival.end()
    assert arrival.measure_head(5)
    assert arrival.head_bytes == 0
    arrival.receive(7)
    arrival.begin()
    arrival.end_head()
    arrival.end()
    arrival.begin()
    assert arrival.measure_head(7)
    assert arrival.head_bytes == 1  # how many of the seven were its own is not known


def test_a_chunk_costs_no_more_than_it_brings() -> None:
    arrival = arriving()
    arrival.body_bytes = 64 * 100
    assert [arrival.chunk() for _ in range(1024 + 100)] == [None] * 1124
    assert arrival.chunk() is TINY_CHUNKS


@pytest.mark.parametrize(
    ("received", "problem"), [(2 * HEAD_BYTES + 20, None), (2 * HEAD_BYTES + 21, LARGE_HEAD)]
)
def test_what_surrounds_a_body_is_bounded(received: int, problem: object) -> None:
    assert framing_problem(received=received + 500, body=500, chunks=1) is problem
    arrival = arriving()
    arrival.receive(received + 500)
    arrival.body_bytes = 500
    assert arrival.chunk() is None
    assert arrival.framing() is problem


def test_only_headers_that_decide_may_not_come_twice() -> None:
    assert is_repeated([(b"host", b"a"), (b"x", b"1"), (b"host", b"a")])
    assert is_repeated([(b"x-gitlab-token", b"a"), (b"x-gitlab-token", b"b")])
    assert not is_repeated([(b"x", b"1"), (b"x", b"2"), (b"host", b"a")])
