"""Prepares untrusted text for a page: masked, visible and shortened. Pure.

Masking protects against accidents: it finds text that looks like a secret by its name or its form. A person
who may read the page may also read the whole message by the API.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

MASK: Final = "***"
READ_BYTES: Final = 64 * 1024
"""How much of a body is read for the page."""
SHOWN_CHARACTERS: Final = 16 * 1024
SHOWN_OF_HEADER: Final = 2048

_NAME: Final = (
    r"[\w.-]{0,64}(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|credential|authorization|cookie)"
    r"[\w.-]{0,64}"
)
_NAMED: Final = re.compile(_NAME, re.IGNORECASE)
_IN_JSON: Final = re.compile(
    rf"""(["'])({_NAME})\1(\s{{0,9}}:\s{{0,9}})(["'])(?:\\.|(?!\4)[^\\])*(?:\4|\\?\Z)""",
    re.IGNORECASE | re.DOTALL,
)
_ASSIGNED: Final = re.compile(
    rf"""\b({_NAME})(\s{{0,9}}[=:]\s{{0,9}})(?:(?:Bearer|Basic)\s+)?[^\s"'&;,]+""", re.IGNORECASE
)
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^\s/@:\"'<>]{0,256}):[^\s/@\"'<>]{1,1024}(?=@)")
_URL_TOKEN: Final = re.compile(r"(?<=://)[^\s/@:\"'<>]{20,1024}(?=@)")
_FORMS: Final = re.compile(
    r"\b(?:gh[pousr]_\w{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}|solstice_[\w-]{40,64}|"
    r"xox[abprs]-[\w-]{10,255}|AKIA[A-Z0-9]{16})"
)
"""Tokens of GitHub, GitLab, our own, Slack and AWS, by their prefixes."""
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """Text as a page shows it."""

    text: str
    left_out: bool
    """Whether only its beginning is shown."""


def masked(text: str) -> str:
    """Return the text with `***` instead of everything that looks like a secret."""
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}", text)
    text = _URL_TOKEN.sub(MASK, text)
    text = _IN_JSON.sub(rf"\1\2\1\3\4{MASK}\4", text)
    text = _ASSIGNED.sub(rf"\1\2{MASK}", text)
    return _FORMS.sub(MASK, text)


def visible(text: str) -> str:
    """Return the text with invisible characters written as escapes."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown_body(body: bytes) -> ShownText:
    """A body for a page: JSON is indented, bytes that are not UTF-8 are escaped."""
    text = body[:READ_BYTES].decode("utf-8", "backslashreplace")
    is_cut = len(body) > READ_BYTES
    if not is_cut:
        text = _indented(text)
    text = visible(masked(text))
    return ShownText(text=text[:SHOWN_CHARACTERS], left_out=is_cut or len(text) > SHOWN_CHARACTERS)


def shown_header(name: str, value: Any) -> ShownText:
    """Return a header's value for a page."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = MASK if _NAMED.fullmatch(name) else visible(masked(text[:READ_BYTES]))
    return ShownText(text=text[:SHOWN_OF_HEADER], left_out=len(text) > SHOWN_OF_HEADER)


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
