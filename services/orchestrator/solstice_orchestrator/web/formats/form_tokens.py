"""Tokens of forms, which show that a form's page came from here.

The guard refuses other sites by `Origin` and `Sec-Fetch-Site`, which old browsers and programs leave out. A token in the
form that equals one in a cookie (OWASP, double-submit cookie) proves the same without them: another site can send the
cookie, but cannot read it. No process needs to remember tokens, so the form of one orchestrator works at another.
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from solstice_orchestrator.web.formats.refusals import HttpRefusal

COOKIE: Final = "solstice_form"
FIELD: Final = "form_token"
MAX_BYTES: Final = 512 * 1024
"""The largest form: ten thousand ids."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def form_token(request: Request) -> str:
    """Return the token for a form: that of the browser's cookie, else a new one."""
    known = request.cookies.get(COOKIE, "")
    return known if _TOKEN.fullmatch(known) else secrets.token_urlsafe(32)


def remember(response: Response, token: str, *, path: str) -> None:
    """Give the browser the cookie.

    It sends it only to `path` and only from our own pages.
    """
    response.set_cookie(COOKIE, token, path=path, httponly=True, samesite="strict")


async def submitted(request: Request) -> Mapping[str, str]:
    """Return the fields of a form that has the right token.

    HttpRefusal 403 without it, 413 and 400 for anything but our own forms.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BYTES:
            raise HttpRefusal(413, "too_large", f"A form here has at most {MAX_BYTES} bytes.")
    try:
        fields = dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=20, errors="strict"))
    except ValueError:
        raise HttpRefusal(400, "invalid_parameter", "This is no form of these pages.") from None
    cookie, token = request.cookies.get(COOKIE, ""), fields.get(FIELD, "")
    if not _TOKEN.fullmatch(cookie) or not hmac.compare_digest(cookie.encode(), token.encode()):
        raise HttpRefusal(
            403,
            "foreign_origin",
            "This form did not come from here, or the browser sent no cookie: open the page again and confirm once more.",
        )
    return fields
