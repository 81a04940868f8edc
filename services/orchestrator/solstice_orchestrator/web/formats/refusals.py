"""The exception for refused requests, with a code for programs and a sentence for people."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException


class HttpRefusal(HTTPException):
    """A refused request, answered with `{"error": {"code", "message"}}` or a page."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code


def not_found(what: str, name: str) -> HttpRefusal:
    """Return the refusal for a thing that does not exist."""
    return HttpRefusal(404, "not_found", f"There is no {what} {name!r} here.")


def invalid_cursor() -> HttpRefusal:
    """Return the refusal for an `after` that no page of this list has given."""
    return HttpRefusal(
        400,
        "invalid_cursor",
        "after must be the next of a page of this list with the same filters: begin without it.",
    )
