"""JSON Web Signatures over the bytes of messages, alone or in groups. Pure.

A signature is a compact JWS (RFC 7515) by Ed25519 (RFC 8037, RFC 9864) with a detached payload (RFC 7515, appendix F).
Its protected header holds `alg`, `kid` and `typ` and nothing else. There are two forms:

* `typ` is the message's version, `jobrequest.v1`: the payload is the body.
* `typ` is `jobrequest.v1+merkle`: the payload is the root of a Merkle tree over up to 128 bodies. Behind the JWS stand a
  `~` and the path from the message's body to the root, which is computed from both. So many messages share one
  signature, which costs both sides far more than digests do, and the header stays short.

The version in `typ` keeps a signature from counting for a message of another kind.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature

from solstice_common.signing.keys import KEY_NAME, SigningKey, VerifyKey
from solstice_common.signing.merkle import (
    MAX_BODIES,
    MAX_PATH_CHARACTERS,
    ProvenTree,
    grow_tree,
    is_path,
)

MAX_PROTECTED: Final = 256
"""The longest protected header; with a name of 63 characters it has 158."""
_PARTS: Final = 3
_SIGNATURE_CHARACTERS: Final = 86
_OF_TREE: Final = "+merkle"
BEFORE_PATH: Final = "~"
"""Stands between the JWS of a group and the path of a message."""
MAX_CHARACTERS: Final = (
    MAX_PROTECTED + len("..") + _SIGNATURE_CHARACTERS + len(BEFORE_PATH) + MAX_PATH_CHARACTERS
)
"""The longest signature."""


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
    """The compact JWS, without its payload."""
    path: str | None
    """The path to the root of a group's tree; None for a message that was signed alone."""


class _Protected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    alg: Literal["Ed25519", "EdDSA"]
    """`EdDSA` is the name in RFC 8037, which other libraries write."""
    kid: str
    typ: str


def sign(bodies: Sequence[bytes], version: str, key: SigningKey) -> Sequence[str]:
    """Return the signature of each body, all of them messages of this version."""
    signatures: list[str] = []
    for start in range(0, len(bodies), MAX_BODIES):
        group = bodies[start : start + MAX_BODIES]
        if len(group) == 1:
            signatures.append(_signed(version, group[0], key))
            continue
        root, paths = grow_tree(group)
        beginning = _signed(version + _OF_TREE, root, key) + BEFORE_PATH
        signatures += [beginning + path for path in paths]
    return signatures


def read_signature(text: object) -> Signature | None:
    """Take a signature apart, within bounds; None for what is none."""
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    jws, of_tree, path = text.partition(BEFORE_PATH)
    read = _read_jws(jws)
    if read is None:
        return None
    key_name, version, in_group = read
    if in_group != bool(of_tree) or (in_group and not is_path(path)):
        return None
    return Signature(key_name, version, jws, path if in_group else None)


def is_genuine(signature: Signature, body: bytes, key: VerifyKey) -> bool:
    """Whether this key signed this body."""
    if signature.path is None:
        return _verifies(signature.jws, body, key)
    return signed_tree(signature.jws, key).proves(body, signature.path)


def tree_under(jws: str, version: str, keys: Mapping[str, VerifyKey]) -> tuple[str, ProvenTree] | None:
    """Return the key's name and the tree under the JWS of a group.

    None for what is no JWS over a group of messages of this version by one of these keys.
    """
    read = _read_jws(jws)
    key = None if read is None else keys.get(read[0])
    if read is None or key is None or read[1:] != (version, True):
        return None
    return key.name, signed_tree(jws, key)


# The messages of a group follow one another, or come in turn with those of other groups.
@lru_cache(maxsize=64)
def signed_tree(jws: str, key: VerifyKey) -> ProvenTree:
    """Return the tree under a signature; it proves nothing when the signature is wrong."""
    return ProvenTree(lambda root: _verifies(jws, root, key))


# The messages of a group carry the same JWS.
@lru_cache(maxsize=64)
def _read_jws(jws: str) -> tuple[str, str, bool] | None:
    """Return the name of the key, the version, and whether the payload is a root."""
    parts = jws.split(".", _PARTS)
    if len(parts) != _PARTS:
        return None
    head, payload, proof = parts
    protected = _read_protected(head) if len(head) <= MAX_PROTECTED else None
    if protected is None or payload or len(proof) != _SIGNATURE_CHARACTERS:
        return None
    version = protected.typ.removesuffix(_OF_TREE)
    return protected.kid, version, version != protected.typ


@lru_cache(maxsize=256)
def _read_protected(head: str) -> _Protected | None:
    try:
        protected = msgspec.json.decode(_decoded(head) or b"", type=_Protected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return protected if KEY_NAME.fullmatch(protected.kid) else None


def _verifies(jws: str, payload: bytes, key: VerifyKey) -> bool:
    head, _, proof = jws.split(".")
    try:
        key.public.verify(_decoded(proof) or b"", head.encode() + b"." + _encoded(payload))
    except InvalidSignature:
        return False
    return True


def _signed(typ: str, payload: bytes, key: SigningKey) -> str:
    """Return a compact JWS without its payload."""
    head = _encoded(msgspec.json.encode({"alg": "Ed25519", "kid": key.name, "typ": typ}))
    proof = key.private.sign(head + b"." + _encoded(payload))
    return f"{head.decode()}..{_encoded(proof).decode()}"


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _decoded(text: str) -> bytes | None:
    """Base64url without padding (RFC 7515, section 2); None for anything else."""
    try:
        data = urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}")
    except (binascii.Error, ValueError):
        return None
    return data if _encoded(data).decode() == text else None
