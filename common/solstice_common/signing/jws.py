"""JSON Web Signatures over the bytes of messages, alone or in groups. Pure.

A signature is a compact JWS (RFC 7515) by Ed25519 (RFC 8037, RFC 9864). Its protected header holds `alg`, `kid` and
`typ` and nothing else. There are two forms:

* `typ` is the message's version, `jobrequest.v1`: the payload is detached (RFC 7515, appendix F) and is the body.
* `typ` is `jobrequest.v1+sha256`: the payload stands in the signature and is the SHA-256 digests of up to 16 bodies,
  one behind the other. Each of these messages carries the same signature, which costs a sixteenth for both sides.

The version in `typ` keeps a signature from counting for a message of another kind.
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

GROUP: Final = 16
"""Bodies under one signature. More would save little, and each makes the header 43 characters longer."""
MAX_CHARACTERS: Final = 1100
"""The longest signature; one of a group has about 850 characters."""
MAX_PROTECTED: Final = 256
"""The longest protected header; with a name of 63 characters it has 155."""
_PARTS: Final = 3
_SIGNATURE_CHARACTERS: Final = 86
_DIGEST_BYTES: Final = 32
_OF_DIGESTS: Final = "+sha256"


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
    of_digests: bool
    text: str


class _Protected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    alg: Literal["Ed25519", "EdDSA"]
    """`EdDSA` is the name in RFC 8037, which other libraries write."""
    kid: str
    typ: str


def sign(bodies: Sequence[bytes], version: str, key: SigningKey) -> Sequence[str]:
    """The signature of each body, all of them messages of this version."""
    if len(bodies) == 1:
        head, _, signature = _signed(version, bodies[0], key).split(".")
        return [f"{head}..{signature}"]
    signatures: list[str] = []
    for start in range(0, len(bodies), GROUP):
        group = bodies[start : start + GROUP]
        digests = b"".join(sha256(body).digest() for body in group)
        signatures += [_signed(version + _OF_DIGESTS, digests, key)] * len(group)
    return signatures


def read_signature(text: object) -> Signature | None:
    """Parse a signature; None for anything else. Its work is bounded."""
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    parts = text.split(".", _PARTS)
    if len(parts) != _PARTS:
        return None
    head, payload, signature = parts
    protected = _read_protected(head) if len(head) <= MAX_PROTECTED else None
    if protected is None or len(signature) != _SIGNATURE_CHARACTERS:
        return None
    version, of_digests = protected.typ.removesuffix(_OF_DIGESTS), protected.typ.endswith(_OF_DIGESTS)
    if of_digests != bool(payload):
        return None
    return Signature(protected.kid, version, of_digests, text)


def is_genuine(signature: Signature, body: bytes, key: VerifyKey) -> bool:
    """Whether this key signed this body."""
    if signature.of_digests:
        return sha256(body).digest() in _signed_digests(signature.text, key)
    head, _, proof = signature.text.split(".")
    return _verifies(f"{head}.".encode() + _encoded(body), proof, key)


@lru_cache(maxsize=256)
def _signed_digests(text: str, key: VerifyKey) -> frozenset[bytes]:
    """The digests under a signature; none when it is wrong.

    The messages of a group follow one another, so the cache computes it once for them.
    """
    signed, _, proof = text.rpartition(".")
    if not _verifies(signed.encode(), proof, key):
        return frozenset()
    digests = _decoded(signed.partition(".")[2]) or b""
    if len(digests) % _DIGEST_BYTES:
        return frozenset()
    return frozenset(
        digests[start : start + _DIGEST_BYTES] for start in range(0, len(digests), _DIGEST_BYTES)
    )


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
    """A compact JWS with its payload."""
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
