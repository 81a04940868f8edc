"""Checks the signature of Standard Webhooks, made by GitLab 19.0 and later. Pure.

GitLab makes it with a signing token.
Source: github.com/standard-webhooks/standard-webhooks spec/standard-webhooks.md; gitlab-org/gitlab!230944.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from solstice_forge.forges.protocol import Forged, Headers
from solstice_forge.forges.signatures import check_present, equals_any, wire_bytes

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOKEN_PREFIX: Final = "whsec_"  # noqa: S105  what marks a token, not a token
TOLERANCE_SECONDS: Final = 300
_VERSION: Final = "v1,"
_MAX_TIMESTAMP_DIGITS: Final = 12


def key_of(token: str) -> bytes:
    """Return the key in a signing token, with or without `whsec_`.

    It is empty when the token is not base64 or holds nothing.
    """
    text = token.removeprefix(TOKEN_PREFIX)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return b""


def sign(token: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    return _VERSION + _digest(key_of(token), message_id, timestamp, body)


def check(headers: Headers, body: bytes, tokens: Sequence[str], now: float) -> Forged | None:
    """Return None when one of the signatures is right and within the time tolerance.

    The header separates signatures by spaces, for rotation of the token.
    """
    signature, message_id, timestamp = (headers.get(name) for name in (SIGNATURE, ID, TIMESTAMP))
    keys = [key for token in tokens if (key := key_of(token))]
    if problem := check_present(SIGNATURE, signature, ["set" for _ in keys]):
        return problem
    if not message_id or not timestamp:
        return Forged(detail=f"{ID} and {TIMESTAMP} are needed beside {SIGNATURE}")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= _MAX_TIMESTAMP_DIGITS):
        return Forged(detail=f"{TIMESTAMP} is not a number of seconds")
    if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        return Forged(
            detail=f"{TIMESTAMP} is more than {TOLERANCE_SECONDS} s away from the time here: check both clocks"
        )
    expected = [(_VERSION + _digest(key, message_id, timestamp, body)).encode() for key in keys]
    signatures = [wire_bytes(one) for one in (signature or "").split(" ")]
    # Every signature is compared with every key, so that the time does not reveal which was nearly right.
    if True in [equals_any(one, expected) for one in signatures]:
        return None
    return Forged(detail=f"{SIGNATURE} does not match")


def _digest(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = wire_bytes(f"{message_id}.{timestamp}.") + body
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
