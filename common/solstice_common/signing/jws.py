"""JSON Web Signatures over the bytes of messages, alone or in groups. Pure.

A signature is a compact JWS (RFC 7515) by Ed25519 (RFC 8037, RFC 9864). Its protected header holds `alg`, `kid` and
`typ` and nothing else. There are two forms:

* `typ` is the message's version, `jobrequest.v1`: the payload is detached (RFC 7515, appendix F) and is the body.
* `typ` is `jobrequest.v1+sha256-lists`: the payload stands in the signature and is the SHA-256 digests of up to ten
  lists, one behind the other. Behind a `~` stands one of these lists: the SHA-256 digests of up to ten bodies, the
  message's own among them. So a hundred messages share one signature, which costs both sides far more than a digest, and
  ten of them the same text.

The version in `typ` keeps a signature from counting for a message of another kind. Bodies and lists never change places:
a digest of the payload is of a list alone, a digest of a list is of a body alone.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature

from solstice_common.signing.keys import KEY_NAME, SigningKey, VerifyKey

LIST: Final = 10
"""Bodies in a list, and lists under a signature: a square, since a header holds one of each."""
GROUP: Final = LIST * LIST
"""Bodies under one signature."""
MAX_CHARACTERS: Final = 1200
"""The longest signature; one of a group has about 1,050 characters."""
MAX_PROTECTED: Final = 256
"""The longest protected header; with a name of 63 characters it has 166."""
_PARTS: Final = 3
_SIGNATURE_CHARACTERS: Final = 86
_DIGEST_BYTES: Final = 32
_MOST_BYTES: Final = LIST * _DIGEST_BYTES
_OF_LISTS: Final = "+sha256-lists"
_BEFORE_LIST: Final = "~"


class SignatureReason(StrEnum):
    """Why a message is refused for its signature; one word in the dead letter."""

    UNSIGNED = "unsigned"
    """The message has no signature."""
    MALFORMED_SIGNATURE = "malformed_signature"
    """The header is no signature."""
    UNKNOWN_KEY = "unknown_key"
    """No key of that name is in VERIFY_KEYS (any more)."""
    WRONG_TYPE = "wrong_type"
    """It was signed as a message of another kind."""
    WRONG_SIGNATURE = "wrong_signature"
    """The message was changed after it was signed, or was signed by another key of that name."""
    OUTSIDE_SCOPE = "outside_scope"
    """The key is not for that source or repository."""
    MISSING_RIGHT = "missing_right"
    """The message has a field that its key may not set."""
    TOO_OLD = "too_old"
    """It is so old that the store may have forgotten an earlier copy."""


class Signature(NamedTuple):
    """A parsed signature; nothing in it is verified."""

    key_name: str
    version: str
    jws: str
    """The compact JWS."""
    listed: str | None
    """The list of a group, as it was sent; None for a message that was signed alone."""


class _Protected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    alg: Literal["Ed25519", "EdDSA"]
    """`EdDSA` is the name in RFC 8037, which other libraries write."""
    kid: str
    typ: str


def sign(bodies: Sequence[bytes], version: str, key: SigningKey) -> Sequence[str]:
    """Return the signature of each body, all of them messages of this version."""
    if len(bodies) == 1:
        head, _, signature = _signed(version, bodies[0], key).split(".")
        return [f"{head}..{signature}"]
    signatures: list[str] = []
    for start in range(0, len(bodies), GROUP):
        lists = [
            b"".join([sha256(body).digest() for body in bodies[at : at + LIST]])
            for at in range(start, min(start + GROUP, len(bodies)), LIST)
        ]
        jws = _signed(version + _OF_LISTS, b"".join([sha256(each).digest() for each in lists]), key)
        for each in lists:
            text = f"{jws}{_BEFORE_LIST}{_encoded(each).decode()}"
            signatures += [text] * (len(each) // _DIGEST_BYTES)
    return signatures


# The messages of a list carry the same text.
@lru_cache(maxsize=256)
def _parse(text: str) -> Signature | None:
    jws, of_list, listed = text.partition(_BEFORE_LIST)
    parts = jws.split(".", _PARTS)
    if len(parts) != _PARTS:
        return None
    head, payload, signature = parts
    protected = _read_protected(head) if len(head) <= MAX_PROTECTED else None
    if protected is None or len(signature) != _SIGNATURE_CHARACTERS:
        return None
    version = protected.typ.removesuffix(_OF_LISTS)
    in_group = version != protected.typ
    if in_group != bool(payload) or in_group != bool(of_list):
        return None
    return Signature(protected.kid, version, jws, listed if in_group else None)


def read_signature(text: object) -> Signature | None:
    """Take a signature apart, within bounds; None for what is none."""
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    return _parse(text)


def signed_bodies(signature: Signature, key: VerifyKey) -> frozenset[bytes]:
    """Return the SHA-256 digests of the bodies that this key signed together.

    None of what was signed alone, or by another key.
    """
    return frozenset() if signature.listed is None else _signed_bodies(signature, key)


def is_genuine(signature: Signature, body: bytes, key: VerifyKey) -> bool:
    """Whether this key signed this body."""
    if signature.listed is not None:
        return sha256(body).digest() in _signed_bodies(signature, key)
    head, _, proof = signature.jws.split(".")
    return _verifies(f"{head}.".encode() + _encoded(body), proof, key)


@lru_cache(maxsize=256)
def _signed_bodies(signature: Signature, key: VerifyKey) -> frozenset[bytes]:
    """Return the digests of the bodies in a list; none when it was not signed."""
    listed = _decoded(signature.listed or "") or b""
    if sha256(listed).digest() not in _signed_lists(signature.jws, key):
        return frozenset()
    return _digests(listed)


@lru_cache(maxsize=64)
def _signed_lists(jws: str, key: VerifyKey) -> frozenset[bytes]:
    """Return the digests of the lists under a signature; none when it is wrong.

    The messages of a group follow one another, so the cache computes it once for them.
    """
    signed, _, proof = jws.rpartition(".")
    if not _verifies(signed.encode(), proof, key):
        return frozenset()
    return _digests(_decoded(signed.partition(".")[2]) or b"")


def _digests(data: bytes) -> frozenset[bytes]:
    """The digests that stand one behind the other; none of what is no such row."""
    if len(data) % _DIGEST_BYTES or len(data) > _MOST_BYTES:
        return frozenset()
    return frozenset(data[start : start + _DIGEST_BYTES] for start in range(0, len(data), _DIGEST_BYTES))


@lru_cache(maxsize=256)
def _read_protected(head: str) -> _Protected | None:
    try:
        protected = msgspec.json.decode(_decoded(head) or b"", type=_Protected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return protected if KEY_NAME.fullmatch(protected.kid) else None


def _verifies(signed: bytes, proof: str, key: VerifyKey) -> bool:
    try:
        key.public.verify(_decoded(proof) or b"", signed)
    except InvalidSignature:
        return False
    return True


def _signed(typ: str, payload: bytes, key: SigningKey) -> str:
    """Return a compact JWS with its payload."""
    head = msgspec.json.encode({"alg": "Ed25519", "kid": key.name, "typ": typ})
    signed = _encoded(head) + b"." + _encoded(payload)
    return (signed + b"." + _encoded(key.private.sign(signed))).decode()


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _decoded(text: str) -> bytes | None:
    """Base64url without padding (RFC 7515, section 2); None for anything else."""
    try:
        data = urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}")
    except (binascii.Error, ValueError):
        return None
    return data if _encoded(data).decode() == text else None
