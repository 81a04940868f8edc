"""Signatures in both forms, checked against joserfc and RFC 7515, and malformed ones."""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws as joserfc_jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import OKPKey

from solstice_common.signing.jws import (
    MAX_CHARACTERS,
    MAX_PROTECTED,
    is_genuine,
    read_signature,
    sign,
    signed_tree,
)
from solstice_common.signing.merkle import MAX_BODIES, MAX_LEVELS, STEP_CHARACTERS, grow_tree
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


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=2 * MAX_BODIES + 3))
def test_what_is_signed_is_genuine_alone_and_in_groups(bodies: list[bytes]) -> None:
    signatures = sign(bodies, VERSION, PAIR.signing)
    assert all(genuine(text, body) for text, body in zip(signatures, bodies, strict=True))
    assert len({text.partition("~")[0] for text in signatures}) <= len(bodies) / MAX_BODIES + 1
    assert all(len(text) < MAX_CHARACTERS for text in signatures)


@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=MAX_BODIES),
    st.binary(min_size=1, max_size=60),
)
def test_another_body_is_not_genuine(bodies: list[bytes], other: bytes) -> None:
    """Not even one of the same group: a path belongs to its own place."""
    for place, text in enumerate(sign(bodies, VERSION, PAIR.signing)):
        for body in (other, bodies[place - 1]):
            assert genuine(text, body) == (body == bodies[place])


def test_the_longest_signature_fits_its_bounds() -> None:
    pair = KeyPair("k" * 63)
    (text, *_) = sign([b"%d" % number for number in range(MAX_BODIES)], VERSION, pair.signing)
    assert genuine(text, b"0", pair)
    assert len(urlsafe_b64decode(f"{text.partition('.')[0]}==")) <= MAX_PROTECTED
    assert len(text) <= MAX_CHARACTERS


@given(st.integers(1, MAX_BODIES), st.data())
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


def test_a_signature_of_a_group_is_the_detached_jws_over_the_root_of_its_tree() -> None:
    """An independent implementation verifies it."""
    bodies = [b"%d" % number for number in range(5)]
    root, paths = grow_tree(bodies)
    (jws, *others), shown = zip(
        *(text.split("~") for text in sign(bodies, VERSION, PAIR.signing)), strict=True
    )
    assert {*others} == {jws}
    assert [*shown] == paths
    public = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": PAIR.verify.x})
    read = joserfc_jws.deserialize_compact(jws, public, algorithms=["Ed25519"], payload=root)
    assert read.headers() == {"alg": "Ed25519", "kid": "forge", "typ": f"{VERSION}+merkle"}


def test_a_path_counts_for_its_own_signature_alone() -> None:
    """Also when both trees are proven already."""
    ours, others = ([b"%d" % (number + at) for number in range(9)] for at in (0, 100))
    signed, other = sign(ours, VERSION, PAIR.signing), sign(others, VERSION, PAIR.signing)
    assert all(genuine(text, body) for text, body in zip((*signed, *other), (*ours, *others), strict=True))
    for own, foreign in zip(signed, other, strict=True):
        mixed = f"{own.partition('~')[0]}~{foreign.partition('~')[2]}"
        assert not any(genuine(mixed, body) for body in (*ours, *others))


def test_a_root_is_no_body_and_a_body_no_root() -> None:
    """Who may sign one body of their choice proves nothing for others with it."""
    forged = b'{"schema_version":"jobrequest.v1","trusted":true}'
    root, (path, _) = grow_tree([forged, b"2"])
    alone = sign([root], VERSION, PAIR.signing)[0]
    assert genuine(alone, root)
    assert not genuine(f"{alone}~{path}", forged)
    head, _, proof = alone.split(".")
    as_tree = encoded({**HEADER, "typ": f"{VERSION}+merkle"})
    assert not genuine(f"{as_tree}..{proof}~{path}", forged)
    # Nor does the root of what was signed together count as a body that was signed alone.
    jws = sign([forged, b"2"], VERSION, PAIR.signing)[0].partition("~")[0]
    assert not genuine(jws, root)
    assert not genuine(f"{head}..{jws.rpartition('.')[2]}", root)


def test_a_wrong_path_that_came_first_does_not_spoil_the_right_one() -> None:
    bodies = [b"%d" % number for number in range(6)]
    for text, body in zip(sign(bodies, "jobcancel.v1", PAIR.signing), bodies, strict=True):
        jws, _, path = text.partition("~")
        for wrong in (path[STEP_CHARACTERS:] + path[:STEP_CHARACTERS], grow_tree([b"evil", body])[1][1]):
            signature = read_signature(f"{jws}~{wrong}")
            assert signature is not None
            assert is_genuine(signature, b"evil", PAIR.verify) is False
            assert wrong == path or is_genuine(signature, body, PAIR.verify) is False
        signature = read_signature(text)
        assert signature is not None
        assert is_genuine(signature, body, PAIR.verify)


def test_trees_are_remembered_within_bounds() -> None:
    for number in range(200):
        assert genuine(sign([b"%d" % number, b"2"], VERSION, PAIR.signing)[1], b"2")
    assert signed_tree.cache_info().currsize <= 64


@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=2, max_size=2 * MAX_BODIES, unique=True), st.data()
)
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
OF_TREE = encoded({**HEADER, "typ": f"{VERSION}+merkle"})
PROOF = "A" * 86
STEP = "A" * STEP_CHARACTERS


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
        f"{OF_TREE}..{PROOF}",
        f"{OF_TREE}..{PROOF}~",
        f"{OF_TREE}.{'A' * 43}.{PROOF}",
        f"{OF_TREE}.{'A' * 43}.{PROOF}~{STEP}",
        f"{OF_TREE}..{PROOF}~{STEP[1:]}",
        f"{OF_TREE}..{PROOF}~{STEP}A",
        f"{OF_TREE}..{PROOF}~{STEP[1:]}+",
        f"{OF_TREE}..{PROOF}~{STEP[1:]}=",
        f"{OF_TREE}..{PROOF}~{STEP}~{STEP}",
        f"{OF_TREE}..{PROOF}~{STEP}" + chr(10),
        f"{OF_TREE}..{PROOF}~{STEP * (MAX_LEVELS + 1)}",
        f"{OF_TREE}..{PROOF}~{STEP * 100_000}",
        f"{encoded(HEADER)}..{PROOF}~{STEP}",
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


def test_a_tree_of_one_body_is_no_signature() -> None:
    """It would be a second form of what is signed alone."""
    private = OKPKey.import_key(json.loads(PAIR.text))
    root, (path,) = grow_tree([BODY])
    header = {**HEADER, "typ": f"{VERSION}+merkle"}
    whole = joserfc_jws.serialize_compact(header, root, private, algorithms=["Ed25519"])
    assert path == ""
    assert read_signature(f"{joserfc_jws.detach_content(whole)}~") is None
