"""Bodies arrive in pieces, and what is too large is hashed and not held."""

from hashlib import sha256

import pytest

from solstice_common.broker.dead_letters.hashed_bodies import (
    GROUP,
    GROUP_BYTES,
    HEAD_BYTES,
    HashedBody,
    LargeBody,
    in_groups,
)
from solstice_common.broker.protocol import HELD_BODY_BYTES


def arrived(body: bytes, piece_bytes: int, *, whole: bool = False) -> tuple[bytes, LargeBody | None]:
    arriving = HashedBody(len(body), whole=whole)
    for start in range(0, len(body), piece_bytes):
        assert not arriving.is_complete
        arriving.add(body[start : start + piece_bytes])
    assert arriving.is_complete
    return arriving.read()


@pytest.mark.parametrize("size", [0, 1, 1000, HELD_BODY_BYTES])
def test_a_small_body_is_held_whole(size: int) -> None:
    body = bytes(range(250)) * (size // 250) + bytes(size % 250)
    assert arrived(body, 131_064) == (body, None)


@pytest.mark.parametrize("piece_bytes", [1000, HEAD_BYTES, 131_064, 1 << 20])
def test_of_a_large_one_the_beginning_is_held_and_the_digest_is_of_all(piece_bytes: int) -> None:
    body = bytes(HELD_BODY_BYTES) + b"end"
    beginning, large = arrived(body, piece_bytes)
    assert beginning == body[:HEAD_BYTES]
    assert large == LargeBody(size=len(body), digest=sha256(body).digest())


def test_a_large_one_is_whole_where_it_is_wanted() -> None:
    body = bytes(HELD_BODY_BYTES + 1)
    assert arrived(body, 131_064, whole=True) == (body, None)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([0] * (GROUP + 1), [[0] * GROUP, [0]]),
        ([GROUP_BYTES // 2] * 3, [[GROUP_BYTES // 2] * 2, [GROUP_BYTES // 2]]),
        ([1, GROUP_BYTES + 1, 1], [[1], [GROUP_BYTES + 1], [1]]),
    ],
    ids=["none", "many", "half of the bytes each", "one too large"],
)
def test_groups_are_small_in_number_and_bytes(sizes: list[int], groups: list[list[int]]) -> None:
    assert list(in_groups(sizes, int)) == groups
