"""Secrets never reach a log for any cuts of the output, and everything else does."""

import base64
import json
import random
import re
import shlex
import textwrap
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.worker import masking
from solstice_orchestrator.worker.masking import LEAST_CHARACTERS, MASK, Masking

SECRET = "heron-otter-7731"
LONG = "a-token-of-ninety-three-characters-" + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"


def masked(data: bytes, *secrets: str, cuts: list[int] | None = None) -> bytes:
    """The masked output of `data` in pieces."""
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


@pytest.mark.parametrize("before", ["", "u", "u:"])
def test_base64_of_many_lines_is_masked_and_what_stands_around_it_is_shown(before: str) -> None:
    secret = "heron-otter-7731!!!"[len(before) :]
    encoded = base64.b64encode(f"{before}{secret}".encode()).decode()
    data = ("say " + "\r\n".join(textwrap.wrap(encoded, 4)) + " and bye").encode()
    neighbours = {"": 0, "u": 2, "u:": 3}[before]
    shown = (
        b"say " + encoded[:neighbours].encode() + b"***" + encoded[len(encoded) - 3 :].encode() + b" and bye"
    )
    assert masked(data, secret, cuts=list(range(len(data)))) == shown


@pytest.mark.parametrize("upper", [False, True], ids=["xxd -p", "xxd -u -p"])
@pytest.mark.parametrize("secret", [LONG, f"{LONG}\n{SECRET}\n"], ids=["one line", "two lines"])
def test_hexadecimal_digits_over_many_lines_are_masked(secret: str, upper: bool) -> None:
    digits = secret.encode().hex()
    written = textwrap.fill(digits.upper() if upper else digits, 60)
    assert masked(f"before\n{written}\nafter\n".encode(), secret) == b"before\n***\nafter\n"


def test_each_secret_of_a_piece_is_masked() -> None:
    assert masked(f"a {SECRET} b {SECRET} c".encode(), SECRET) == b"a *** b *** c"


def test_colour_that_is_cut_within_a_secret_does_not_hide_it() -> None:
    data = b"say heron-\x1b[38;5;9motter-7731 and bye"
    assert masked(data, SECRET, cuts=list(range(len(data)))) == b"say ***\x1b[38;5;9m and bye"


def test_each_line_of_a_secret_is_masked() -> None:
    key = "-----BEGIN KEY-----\nline one of it\nline two of it\nend\n"
    shown = masked(b"  line one of it\n  line two of it\n", key)
    assert shown == b"  ***\n  ***\n"


def test_whole_text_is_masked() -> None:
    assert Masking([SECRET]).masked(f"it said {SECRET}") == "it said ***"


def test_without_secrets_nothing_is_held() -> None:
    assert Masking([]).feed(b"anything") == b"anything"


ODD = "p@ss/w\u00f6rd+'<\"&\\ =%~(7)"
FORMS = {
    "URL": quote(ODD, ""),
    "URL, lower": re.sub("%..", lambda found: found.group().lower(), quote(ODD, "")),
    "form": quote_plus(ODD),
    "JSON": json.dumps(ODD)[1:-1],
    "JSON, unescaped": json.dumps(ODD, ensure_ascii=False)[1:-1],
    "JSON, upper": json.dumps(ODD)[1:-1].replace("\\u00f6", "\\u00F6"),
    "hex": ODD.encode().hex(),
    "HEX": ODD.encode().hex().upper(),
    "hex, spaced": ODD.encode().hex(" "),
    "hex, with colons": ODD.encode().hex(":").upper(),
    "URL, each character": "".join(f"%{byte:02X}" for byte in ODD.encode()),
    "each byte": "".join(f"\\x{byte:02x}" for byte in ODD.encode()),
    "each character": "".join(f"\\u{ord(char):04X}" for char in ODD),
    "JSON in JSON": json.dumps(json.dumps(ODD)[1:-1])[1:-1],
    "Python": repr(ODD)[1:-1],
    "Python, bytes": repr(ODD.encode())[2:-1],
    "shell": shlex.quote(ODD)[1:-1],
    "shell, another": ODD.replace("'", "'\\''"),
}
MIXED = {
    "URL": "p%40ss%2Fw%c3%B6rd%2b%27%3C%22%26%5c%20%3D%25~%287%29",
    "URL, others": "p%40ss%2fw%C3%b6rd%2B'%3c%22%26%5c%20%3d%25~(7)",
    "form": "p%40ss%2fw%C3%b6rd%2B%27%3c%22%26%5C+%3D%25~%287%29",
    "JSON": r"p@ss/w\u00F6rd+'\u003c\"\u0026\\ =%~(7)",
    "JSON, quotes too": r"p@ss/w\u00f6rd+\u0027\u003C\"\u0026\\ =%~(7)",
    "hex": "".join(digit.upper() if place % 3 else digit for place, digit in enumerate(ODD.encode().hex())),
}
COLOURS = (b"\x1b[31m", b"\x1b[0m", b"\x1b[38;5;9;1m", b"\x1b(B\x1b[m", b"\x1b[K")


@pytest.mark.parametrize(
    "form", [*FORMS.values(), *MIXED.values()], ids=[*FORMS, *(f"mixed {each}" for each in MIXED)]
)
def test_each_form_of_a_secret_is_masked_in_one_piece(form: str) -> None:
    assert masked(f"before {form} after".encode(), ODD) == b"before *** after"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_secret_is_masked_as_others_write_it(form: str, cuts: list[int]) -> None:
    assert masked(f"before {form} after".encode(), ODD, cuts=cuts) == b"before *** after"


@pytest.mark.parametrize("form", MIXED.values(), ids=MIXED.keys())
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_hexadecimal_digits_may_be_of_either_case_side_by_side(form: str, cuts: list[int]) -> None:
    assert masked(f"before {form} after".encode(), ODD, cuts=cuts) == b"before *** after"


@pytest.mark.parametrize(
    "text",
    [SECRET.upper(), quote(ODD, "").swapcase(), json.dumps(ODD)[1:-1].swapcase(), "P%40ss%2fw%c3%b6rd"],
)
def test_letters_of_the_secret_itself_keep_their_case(text: str) -> None:
    assert masked(text.encode(), SECRET, ODD) == text.encode()


def test_a_backslash_of_the_secret_begins_no_escape() -> None:
    """Its JSON form is `ab\\\\u00EFgh`: what follows the doubled backslash is no number."""
    secret = "ab\\u00EFgh"
    form = json.dumps(secret)[1:-1]
    assert masked(form.encode(), secret) == MASK
    assert masked(form.lower().encode(), secret) == form.lower().encode()


@given(
    st.lists(st.tuples(st.sampled_from(sorted(FORMS.values())), st.integers(0, 2**32)), max_size=4),
    st.lists(st.integers(0, 600), max_size=10),
)
def test_colours_within_a_secret_do_not_hide_it(reported: list[tuple[str, int]], cuts: list[int]) -> None:
    """Compared with a naive model: colours taken out, forms replaced."""
    data = b""
    for form, seed in reported:
        rng = random.Random(seed)
        data += b" a "
        for byte in form.encode():
            data += bytes([byte]) + (rng.choice(COLOURS) if rng.random() < 0.4 else b"")
    data += b" end"
    shown = masked(data, ODD, cuts=cuts)
    assert shown == masked(data, ODD)
    for colour in COLOURS:
        data, shown = data.replace(colour, b""), shown.replace(colour, b"")
    assert shown == b" a ***" * len(reported) + b" end"


def test_a_secret_in_a_title_is_masked() -> None:
    assert masked(f"\x1b]0;{SECRET}\x07".encode(), SECRET, cuts=[3, 9]) == b"\x1b]0;***\x07"


def test_colours_stay_where_no_secret_is() -> None:
    data = b"\x1b[31mred\x1b[0m heron\x1b[1m stands \x1b["
    assert masked(data, SECRET, cuts=[3, 17, 25]) == data


def test_colour_that_ends_within_a_secret_still_ends() -> None:
    assert masked(b"\x1b[31mheron-\x1b[0motter-7731!", SECRET) == b"\x1b[31m***\x1b[0m!"


def test_what_is_held_back_is_bounded() -> None:
    masking = Masking([SECRET])
    written = sum(len(piece) for piece in [b"heron" + b"\x1b[0m" * 20_000] * 10)
    shown = sum(len(masking.feed(b"heron" + b"\x1b[0m" * 20_000)) for _ in range(10))
    assert written - shown <= 200_000


@pytest.mark.parametrize("length", [4, 16, 64])
def test_the_first_bytes_of_a_long_secret_over_and_over_are_rarely_compared_whole(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the output of one job keeps the orchestrator from all other work."""
    secret, places = random.Random(7731).randbytes(2000).hex(), 64 * 1024 // length
    compared: list[bytes] = []

    def begins(needle: bytes, tail: bytes) -> bool:
        compared.append(needle)
        return len(tail) < len(needle) and needle.startswith(tail)

    monkeypatch.setattr(masking, "_begins", begins)
    Masking([secret]).feed(secret[:length].encode() * places)
    assert len(compared) <= len(set(compared)) * 1100
