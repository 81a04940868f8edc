"""Secrets never reach a log, however the output is cut, and everything else does."""

import base64
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.masking import LEAST_CHARACTERS, MASK, Masking

SECRET = "heron-otter-7731"
LONG = "a-token-of-ninety-three-characters-" + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"


def masked(data: bytes, *secrets: str, cuts: list[int] | None = None) -> bytes:
    """What is shown of `data` when it comes in pieces."""
    masking = Masking(secrets)
    places = sorted({min(cut, len(data)) for cut in cuts or ()})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return b"".join([*(masking.feed(piece) for piece in pieces), masking.end()])


def test_secret_is_masked_and_the_rest_is_shown() -> None:
    assert masked(f"before {SECRET} after\n".encode(), SECRET) == b"before *** after\n"


def test_output_without_secrets_is_shown_as_it_is() -> None:
    everything = bytes(range(256)) * 3
    assert masked(everything, SECRET) == everything


def test_only_what_may_be_the_beginning_of_a_secret_is_held_back() -> None:
    masking = Masking([SECRET])
    assert masking.feed(b"working...") == b"working..."
    assert masking.feed(b"heron") == b""
    assert masking.feed(b" stands") == b"heron stands"
    assert masking.feed(SECRET.encode()) == MASK


@given(st.lists(st.integers(0, 80), max_size=12))
def test_cut_anywhere_the_log_is_the_same(cuts: list[int]) -> None:
    encoded = base64.b64encode(f"user:{SECRET}".encode())
    data = b"x" + SECRET.encode() * 2 + b"\r\nheron-otter-77 " + encoded + b"\n" + SECRET[:-1].encode()
    assert masked(data, SECRET, cuts=cuts) == masked(data, SECRET)
    assert SECRET.encode() not in masked(data, SECRET)


@given(
    st.text(alphabet="ab", min_size=LEAST_CHARACTERS, max_size=12),
    st.text(alphabet="ab", min_size=LEAST_CHARACTERS, max_size=12),
    st.text(alphabet="ab", max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_secrets_that_overlap_are_all_masked(one: str, other: str, text: str, cuts: list[int]) -> None:
    """Two letters: they stand in each other and in themselves, at every place."""
    shown = masked(text.encode(), one, other, cuts=cuts)
    assert one.encode() not in shown
    assert other.encode() not in shown
    assert shown == masked(text.encode(), one, other)


@pytest.mark.parametrize("encode", [base64.standard_b64encode, base64.urlsafe_b64encode])
@given(before=st.binary(max_size=10), after=st.binary(max_size=10), cuts=st.lists(st.integers(0, 200)))
def test_base64_is_masked_wherever_it_stands(
    encode: type, before: bytes, after: bytes, cuts: list[int]
) -> None:
    for secret in ("heron-otter??>>~~7731", LONG):
        encoded: bytes = encode(before + secret.encode() + after)
        for width in (76, 64, 1000):
            wrapped = "\n".join(textwrap.wrap(encoded.decode(), width)).encode()
            shown = masked(wrapped, secret, cuts=cuts).replace(b"\n", b"")
            assert MASK in shown
            # What is left is too short to hold more than the neighbours and a character at each end.
            assert len(shown.replace(MASK, b"")) <= (len(before) + len(after)) * 4 / 3 + 8


def test_each_line_of_a_secret_is_masked() -> None:
    key = "-----BEGIN KEY-----\nline one of it\nline two of it\nend\n"
    shown = masked(b"  line one of it\n  line two of it\n", key)
    assert shown == b"  ***\n  ***\n"


def test_whole_text_is_masked() -> None:
    assert Masking([SECRET]).masked(f"it said {SECRET}") == "it said ***"


def test_without_secrets_nothing_is_held() -> None:
    assert Masking([]).feed(b"anything") == b"anything"
