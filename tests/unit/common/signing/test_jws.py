"""Signatures in both forms, checked against joserfc and RFC 7515, and malformed ones."""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws as joserfc_jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import OKPKey

from solstice_common.signing.jws import (
    GROUP,
    LIST,
    MAX_CHARACTERS,
    MAX_PROTECTED,
    is_genuine,
    read_signature,
    sign,
)
from tests.signing import KeyPair

PAIR, OTHER = KeyPair(), KeyPair()
VERSION = "jobrequest.v1"
BODY = b'{"schema_version":"jobrequest.v1"}'


def genuine(text: object, body: bytes, pair: KeyPair = PAIR) -> bool:
    signature = read_signature(text)
    return signature is not None and signature.version == VERSION and is_genuine(signature, body, pair.verify)


def encoded(data: bytes | Mapping[str, object]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return urlsafe_b64encode(raw).decode().rstrip("=")


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=2 * GROUP + 3))
def test_what_is_signed_is_genuine_alone_and_in_groups(bodies: list[bytes]) -> None:
    signatures = sign(bodies, VERSION, PAIR.signing)
    assert all(genuine(text, body) for text, body in zip(signatures, bodies, strict=True))
    assert len({text.partition("~")[0] for text in signatures}) <= len(bodies) / GROUP + 1
    assert len(set(signatures)) <= len(bodies) / LIST + 1
    assert all(len(text) < MAX_CHARACTERS for text in signatures)


@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=GROUP),
    st.binary(min_size=1, max_size=60),
)
def test_another_body_is_not_genuine(bodies: list[bytes], other: bytes) -> None:
    for place, text in enumerate(sign(bodies, VERSION, PAIR.signing)):
        first = place - place % LIST
        assert genuine(text, other) == (other in bodies[first : first + LIST])


def test_the_longest_signature_fits_its_bounds() -> None:
    pair = KeyPair("k" * 63)
    (text, *_) = sign([b"%d" % number for number in range(GROUP)], VERSION, pair.signing)
    assert genuine(text, b"0", pair)
    assert len(text.partition(".")[0]) <= MAX_PROTECTED
    assert len(text) <= MAX_CHARACTERS


@given(st.integers(1, GROUP), st.data())
def test_no_other_text_is_the_signature(size: int, data: st.DataObject) -> None:
    bodies = [b"%d" % number for number in range(size)]
    text = sign(bodies, VERSION, PAIR.signing)[0]
    assert text.count("~") == (size > 1)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    # Not one bit of its form is free, either: a text and its signature are one to one.
    assert genuine(changed, bodies[0]) == (changed == text)


@pytest.mark.parametrize("bodies", [[BODY], [BODY, b"2"]], ids=["alone", "group"])
def test_another_key_of_that_name_is_not_genuine(bodies: Sequence[bytes]) -> None:
    text = sign(bodies, VERSION, OTHER.signing)[0]
    assert genuine(text, BODY, OTHER)
    assert not genuine(text, BODY)
    # Also when its verdict stands in the cache already.
    assert genuine(text, BODY, OTHER)


def test_a_signature_alone_is_the_detached_jws_of_rfc_7515() -> None:
    """An independent implementation verifies it."""
    (text,) = sign([BODY], VERSION, PAIR.signing)
    public = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": PAIR.verify.x})
    read = joserfc_jws.deserialize_compact(text, public, algorithms=["Ed25519"], payload=BODY)
    assert read.headers() == {"alg": "Ed25519", "kid": "forge", "typ": VERSION}


def test_a_signature_of_a_group_is_a_jws_over_the_digests_of_lists_of_digests() -> None:
    bodies = [b"%d" % number for number in range(LIST + 1)]
    *first_list, last = sign(bodies, VERSION, PAIR.signing)
    assert len({*first_list}) == 1
    (jws, tilde, of_first), (same, _, of_last) = first_list[0].partition("~"), last.partition("~")
    assert (tilde, jws) == ("~", same)
    lists = [urlsafe_b64decode(f"{each}==") for each in (of_first, of_last)]
    assert lists[0] == b"".join(sha256(body).digest() for body in bodies[:LIST])
    assert lists[1] == sha256(bodies[LIST]).digest()
    public = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": PAIR.verify.x})
    read = joserfc_jws.deserialize_compact(jws, public, algorithms=["Ed25519"])
    assert read.headers()["typ"] == f"{VERSION}+sha256-lists"
    assert read.payload == b"".join(sha256(each).digest() for each in lists)


def test_a_list_counts_for_its_own_signature_alone() -> None:
    ours, others = ([b"%d" % (number + at) for number in range(LIST + 1)] for at in (0, 100))
    signed, other = sign(ours, VERSION, PAIR.signing), sign(others, VERSION, PAIR.signing)
    mixed = f"{signed[0].partition('~')[0]}~{other[0].partition('~')[2]}"
    assert not any(genuine(mixed, body) for body in (*ours, *others))
    # Of one signature each list counts for its own bodies alone.
    assert genuine(signed[0], ours[0])
    assert not genuine(signed[0], ours[LIST])


def test_a_body_is_no_list_and_a_list_no_body() -> None:
    """A body that looks like a list of digests proves nothing for others."""
    forged = b'{"schema_version":"jobrequest.v1","trusted":true}'
    body = sha256(forged).digest()
    jws, _, own_list = sign([body, b"2"], VERSION, PAIR.signing)[0].partition("~")
    assert genuine(f"{jws}~{own_list}", body)
    assert not genuine(f"{jws}~{encoded(body)}", forged)
    assert not genuine(f"{jws}~{own_list}", urlsafe_b64decode(f"{own_list}=="))
    # Nor what was signed alone, as a body.
    head, _, proof = sign([body], VERSION, PAIR.signing)[0].split(".")
    assert not genuine(f"{head}.{encoded(body)}.{proof}~{encoded(body)}", forged)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=2, max_size=2 * GROUP, unique=True), st.data())
def test_no_part_of_a_signature_counts_with_a_part_of_another(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """Cut out and put together again: genuine only where it is what was signed."""
    texts = [*sign(bodies, VERSION, PAIR.signing), *sign(bodies[:1], VERSION, PAIR.signing)]
    foreign = sign(bodies[::-1], VERSION, OTHER.signing)
    parts = [re.split(r"[.~]", text) for text in (*texts, *foreign)]
    chosen = [data.draw(st.sampled_from(parts)) for _ in range(4)]
    picked = [each[at] for at, each in enumerate(chosen) if at < len(each)]
    text = ".".join(picked[:3]) + "".join(f"~{each}" for each in picked[3:])
    for body in (data.draw(st.sampled_from(bodies)), data.draw(st.binary(max_size=60))):
        own = [each for each, signed in zip(texts, [*bodies, bodies[0]], strict=True) if signed == body]
        assert genuine(text, body) == (text in own)


@pytest.mark.parametrize("algorithm", ["Ed25519", "EdDSA"])
@pytest.mark.filterwarnings(f"ignore::{SecurityWarning.__module__}.{SecurityWarning.__qualname__}")
def test_what_another_implementation_signs_is_genuine(algorithm: str) -> None:
    private = OKPKey.import_key(json.loads(PAIR.text))
    header = {"alg": algorithm, "kid": "forge", "typ": VERSION}
    whole = joserfc_jws.serialize_compact(header, BODY, private, algorithms=[algorithm])
    assert genuine(joserfc_jws.detach_content(whole), BODY)


HEADER = {"alg": "Ed25519", "kid": "forge", "typ": VERSION}
PROOF = "A" * 86


@pytest.mark.parametrize(
    "text",
    [
        7,
        b"a..b",
        {"nested": {"deep": []}},
        "",
        "..",
        "a.b",
        "a.b.c.d",
        f"{encoded(HEADER)}..{PROOF}.",
        f"{encoded(HEADER)}..{PROOF[1:]}",
        f"{encoded(HEADER)}..{'A' * 100_000}",
        f"{encoded(HEADER)}.{'A' * 100_000}.{PROOF}",
        f"{encoded({**HEADER, 'kid': 'k' * MAX_PROTECTED})}..{PROOF}",
        f"{encoded(b'[' * 190)}..{PROOF}",
        f"{encoded(b'[' * 100_000)}..{PROOF}",
        f"{encoded(b'{}')}..{PROOF}",
        f"{encoded(bytes([0xFF]) * 9)}..{PROOF}",
        f"{encoded({**HEADER, 'alg': 'none'})}..{PROOF}",
        f"{encoded({**HEADER, 'alg': 'HS256'})}..{PROOF}",
        f"{encoded({**HEADER, 'kid': 3})}..{PROOF}",
        f"{encoded({**HEADER, 'kid': 'line' + chr(10) + 'break'})}..{PROOF}",
        f"{encoded({**HEADER, 'kid': 'forge' + chr(10)})}..{PROOF}",
        f"{encoded({**HEADER, 'b64': False, 'crit': ['b64']})}..{PROOF}",
        f"{encoded({**HEADER, 'jwk': {'kty': 'OKP'}})}..{PROOF}",
        f"{encoded(HEADER)}=..{PROOF}",
        f"{encoded(HEADER)}.{encoded(b'body')}.{PROOF}",
        f"{encoded({**HEADER, 'typ': VERSION + '+sha256-lists'})}..{PROOF}",
        f"{encoded({**HEADER, 'typ': VERSION + '+sha256-lists'})}..{PROOF}~{'A' * 43}",
        f"{encoded({**HEADER, 'typ': VERSION + '+sha256-lists'})}.{'A' * 43}.{PROOF}",
        f"{encoded(HEADER)}..{PROOF}~{'A' * 43}",
        f"{encoded(HEADER)}..{PROOF}~",
        f"{encoded(HEADER)}..{'é' * 86}",
        f"{encoded(HEADER)}..{chr(0xD800) * 86}",
    ],
)
def test_what_is_no_signature_is_none(text: object) -> None:
    assert read_signature(text) is None


@given(
    st.one_of(
        st.text(), st.binary(), st.from_regex(r"[A-Za-z0-9_-]{0,90}\.[A-Za-z0-9_-]{0,90}\.[A-Za-z0-9_-]{86}")
    )
)
def test_nothing_breaks_the_reader(text: object) -> None:
    assert not genuine(text, BODY)


def test_digests_that_are_none_are_not_genuine() -> None:
    """Half a digest, one too many, the body as digests, or nothing: all signed."""
    private = OKPKey.import_key(json.loads(PAIR.text))
    digest = sha256(BODY).digest()

    def signed_list(payload: bytes, listed: bytes) -> str:
        header = {**HEADER, "typ": f"{VERSION}+sha256-lists"}
        text = joserfc_jws.serialize_compact(header, payload, private, algorithms=["Ed25519"])
        return f"{text}~{encoded(listed)}"

    assert genuine(signed_list(sha256(digest).digest(), digest), BODY)
    for listed in (digest[:-1], digest + b"x", digest * (LIST + 1), BODY, b""):
        text = signed_list(sha256(listed).digest(), listed)
        assert read_signature(text) is not None or len(text) > MAX_CHARACTERS
        assert not genuine(text, BODY)
    for payload in (sha256(digest).digest()[:-1], sha256(digest).digest() * (LIST + 1), digest, BODY):
        assert not genuine(signed_list(payload, digest), BODY)
