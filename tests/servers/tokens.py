"""Makes tokens in a file of the test's own."""

import secrets
import time
from pathlib import Path

from solstice_common.http.token_file import change
from solstice_common.http.tokens import TokenScope, mint


def make_token(path: Path, name: str, *scopes: TokenScope, lifetime_seconds: float | None = None) -> str:
    """Make a token as `solstice token create` does; return its text.

    The file is at `path`.
    """
    token, text = mint(
        name,
        scopes,
        now=time.time(),
        lifetime_seconds=lifetime_seconds,
        random_bytes=secrets.token_bytes(32),
    )
    change(path, lambda tokens: [*tokens, token])
    return text


def bearer(text: str) -> dict[str, str]:
    """The header that sends it."""
    return {"Authorization": f"Bearer {text}"}
