"""Decides from an answer how a call ended. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson

from solstice_forge.remote.call_pacing import ForgeAnswer, is_limited
from solstice_forge.remote.protocol import CallPostponed, CallRefused

DETAIL_CHARACTERS: Final = 500
"""How much of a forge's answer is stored."""

_LATER: Final = frozenset({401, 408, 409, 423, 425, 429})
"""Statuses to retry besides the server's errors. 401: a token that expired or is being replaced by a person."""
_PERHAPS_DONE: Final = frozenset({408, 502, 504})
"""Answers of a proxy: the forge behind it may have carried out the call, or may do so yet."""
_LINK: Final = re.compile(r"<([^<>]*)>((?:\s*;[^,<]*)*)")
_NEXT: Final = re.compile(r""";\s*rel\s*=\s*(?:"next"|'next'|next(?![\w-]))""", re.IGNORECASE)
_LAST_SUCCESS, _FIRST_SERVER_ERROR = 299, 500


def result_of(answer: ForgeAnswer, now: float) -> CallPostponed | CallRefused | None:
    """Return the result that the status alone decides; None: the forge did it."""
    if answer.status <= _LAST_SUCCESS:
        return None
    why = f"{answer.status} {answer.detail}".strip()
    if is_limited(answer):
        return CallPostponed(at=now, why=why, limited=True)
    if answer.status >= _FIRST_SERVER_ERROR or answer.status in _LATER:
        return CallPostponed(at=now, why=why, perhaps_done=answer.status in _PERHAPS_DONE)
    return CallRefused(status=answer.status, detail=answer.detail or "no reason given")


def next_query(link: str) -> Mapping[str, str] | None:
    """Return the next page's query from a `Link` header (RFC 8288), or None.

    Only the query is used: the first call decided the list's address and that our credentials go there.
    """
    for url, parameters in _LINK.findall(link):
        if _NEXT.search(parameters):
            return dict(parse_qsl(urlsplit(url).query))
    return None


def words_of(body: bytes, secrets: Sequence[str] = ()) -> str:
    """Return the forge's text about its refusal: on one line, shortened, without our credentials."""
    text = _message(body) or body.decode("utf-8", "replace")
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= DETAIL_CHARACTERS else text[: DETAIL_CHARACTERS - 1] + "…"


def _message(body: bytes) -> str:
    """Return the text in the JSON of a refusal.

    GitHub, Gitea: `message`, with `errors` beside it; GitLab: `message` (a text or an object) or `error`.
    """
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(document, dict):
        return ""
    parts = [
        _text(document[name])
        for name in ("message", "error", "error_description", "errors")
        if document.get(name)
    ]
    return ": ".join(parts)


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
