"""Tokens of the HTTP APIs: what each allows, and until when. Pure.

`token_file` reads and writes them.

Only the SHA-256 of a token is stored. A token is 256 random bits, so it cannot be guessed, and neither a salt nor a slow
hash would add anything: those are for passwords, which people choose. NIST SP 800-63B (section 5.1.2.2) draws the line
for secrets that are looked up at 112 random bits: from there an approved hash function alone is enough.
"""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

PREFIX: Final = "solstice_"
"""The prefix of every token, for people and secret scanners."""
RANDOM_BYTES: Final = 32
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_SPAN: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


DeniedReason = Literal[
    "expired_token", "missing_scope", "no_tokens_left", "no_tokens_yet", "token_needed", "unknown_token"
]
"""Why a caller is not admitted."""


class TokenScope(StrEnum):
    """What a token allows; none includes another."""

    READ = "read"
    """Read pages, runs, logs, workers, deliveries."""
    ENQUEUE = "enqueue"
    """Have commits built."""
    OPERATE = "operate"
    """Cancel, re-run and steer workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is stored; times are seconds since the epoch."""

    name: str
    scopes: frozenset[TokenScope]
    created_at: float
    expires_at: float | None
    """None: it never expires."""
    sha256: str = field(repr=False)
    """SHA-256 of the token's text, in hexadecimal."""

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def mint(
    name: str,
    scopes: Iterable[TokenScope],
    *,
    now: float,
    lifetime_seconds: float | None,
    random_bytes: bytes,
) -> tuple[Token, str]:
    """Return a new token, and its text, which is not stored.

    ValueError for a name that cannot be one.
    """
    if not NAME.fullmatch(name):
        raise ValueError("must be 1 to 63 letters, digits, dots, underscores and hyphens")
    text = PREFIX + urlsafe_b64encode(random_bytes).decode().rstrip("=")
    token = Token(
        name=name,
        scopes=frozenset(scopes),
        created_at=now,
        expires_at=None if lifetime_seconds is None else now + lifetime_seconds,
        sha256=digest(text),
    )
    return token, text


def digest(text: str) -> str:
    """Return the stored form of a token's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def find(tokens: Sequence[Token], text: str) -> Token | None:
    """Return the token with that text, expired or not.

    Every token is compared, each in constant time.
    """
    presented, match = digest(text), None
    for token in tokens:
        if hmac.compare_digest(token.sha256, presented):
            match = token
    return match


def lifetime_seconds(text: str) -> float:
    """Return the seconds of `90d`, `12h`, `30m` or `8w`; ValueError for anything else."""
    matched = _SPAN.fullmatch(text)
    if matched is None:
        raise ValueError("must be a number and a unit: 30m, 12h, 90d or 8w")
    return float(int(matched[1]) * _UNITS[matched[2]])
