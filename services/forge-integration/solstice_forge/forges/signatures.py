"""Compares signatures in constant time, over bytes, with each secret in use. Pure."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from solstice_forge.forges.protocol import Forged


def hex_digest(secret: str, signed: bytes) -> str:
    """Return the HMAC-SHA256 in lower-case hexadecimal digits."""
    return hmac.digest(secret.encode(), signed, hashlib.sha256).hex()


def check_hex_digest(
    header: str, value: str | None, *, prefix: str, signed: bytes, secrets: Sequence[str]
) -> Forged | None:
    """Return None when the header's value `value` is right under a secret in use.

    It is right when it is `prefix` and the digest of `signed`. The digits must be lower-case, as every forge sends
    them: one spelling per signature.
    """
    if problem := check_present(header, value, secrets):
        return problem
    expected = ((prefix + hex_digest(secret, signed)).encode() for secret in secrets if secret)
    return (
        None if equals_any(wire_bytes(value or ""), expected) else Forged(detail=f"{header} does not match")
    )


def check_present(header: str, value: str | None, secrets: Sequence[str]) -> Forged | None:
    """Refuse a missing secret on our side and a missing value on theirs.

    Gitea and Forgejo send empty signatures when their hook has no secret.
    """
    if not any(secrets):
        return Forged(detail="no secret is set here, so nothing can be believed")
    if value is None:
        return Forged(detail=f"{header} is missing: set the secret in the forge's webhook settings")
    if not value:
        return Forged(detail=f"{header} is empty: set the secret in the forge's webhook settings")
    return None


def equals_any(candidate: bytes, expected: Iterable[bytes]) -> bool:
    """Whether `candidate` is one of `expected`.

    All are compared, so that the time does not reveal which one.
    """
    return True in [hmac.compare_digest(candidate, each) for each in expected]


def wire_bytes(value: str) -> bytes:
    """Return the bytes of a header.

    Servers decode headers as Latin-1, and comparing text that is not ASCII raises.
    """
    return value.encode("latin-1", "replace")
