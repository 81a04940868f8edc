"""How the web part says no: one exception with a code for programs and a sentence for people."""

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_LIMIT = 200


class Refusal(HTTPException):
    """An answer that is not what was asked for; becomes `{"error": {"code", "message"}}` or a page."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, message)
        self.code = code


def not_found(what: str, name: str) -> Refusal:
    """There is no such thing."""
    return Refusal(404, "not_found", f"There is no {what} {name!r} here.")


def number(request: Request, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
    """A whole number of the query; a Refusal tells the bounds."""
    text = request.query_params.get(name) or str(default)
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 17 else -1  # noqa: PLR2004  2**53 has 16 digits
    if not least <= value <= most:
        raise Refusal(
            400, "invalid_parameter", f"{name} must be a whole number from {least} to {most}, not {text!r}."
        )
    return value


def limit(request: Request, default: int = 50, most: int = MAX_LIMIT) -> int:
    """How many of a list the client wants."""
    return number(request, "limit", default, least=1, most=most)
