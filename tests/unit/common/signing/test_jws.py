"""Signatures in both forms, checked against joserfc and RFC 7515, and malformed ones."""

import json
from base64 import urlsafe_b64encode
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
    assert len(set(signatures)) <= len(bodies) / GROUP + 1
    assert all(len(text) < MAX_CHARACTERS for text in signatures)


@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=GROUP),
    st.binary(min_size=1, max_size=60),
)
def test_another_body_is_not_genuine(bodies: list[bytes], other: bytes) -> None:
    for text in sign(bodies, VERSION, PAIR.signing):
        assert genuine(text, other) == (other in bodies)


@given(st.integers(1, GROUP), st.data())
def test_no_other_text_is_the_signature(size: int, data: st.DataObject) -> None:
    bodies = [b"%d" % number for number in range(size)]
    text = sign(bodies, VERSION, PAIR.signing)[0]
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
    """An implementation that knows nothing of ours verifies it."""
    (text,) = sign([BODY], VERSION, PAIR.signing)
    public = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": PAIR.verify.x})
    read = joserfc_jws.deserialize_compact(text, public, algorithms=["Ed25519"], payload=BODY)
    assert read.headers() == {"alg": "Ed25519", "kid": "forge", "typ": VERSION}


def test_a_signature_of_a_group_is_a_jws_over_the_digests() -> None:
    text, same = sign([BODY, b"2"], VERSION, PAIR.signing)
    assert text == same
    public = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": PAIR.verify.x})
    read = joserfc_jws.deserialize_compact(text, public, algorithms=["Ed25519"])
    assert read.headers()["typ"] == f"{VERSION}+sha256"
    assert read.payload == sha256(BODY).digest() + sha256(b"2").digest()


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
        f"{encoded({**HEADER, 'typ': VERSION + '+sha256'})}..{PROOF}",
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
    """Even signed by the key: half a digest, or the body itself as digests."""
    private = OKPKey.import_key(json.loads(PAIR.text))
    for payload in (sha256(BODY).digest()[:-1], sha256(BODY).digest() + b"x", BODY):
        header = {**HEADER, "typ": f"{VERSION}+sha256"}
        text = joserfc_jws.serialize_compact(header, payload, private, algorithms=["Ed25519"])
        if "" in text.split("."):
            head, _, proof = text.split(".")
            text = f"{head}.{encoded(payload)}.{proof}"
        assert read_signature(text) is not None
        assert not genuine(text, BODY)
