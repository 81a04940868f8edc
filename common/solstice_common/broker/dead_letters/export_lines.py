"""Writes dead letters as lines of JSON, and reads them back. Pure."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.values.times import format_timestamp, parse_timestamp

FOR_PEOPLE: Final = frozenset({"id", "reason", "dead_since"})
"""Fields that an import does not read: they repeat the headers, or follow from other fields."""
SHOWN: Final = 80
"""How many characters of a wrong value an error message shows."""
_TEXTS: Final = ("type", "correlation_id", "message_id", "content_type", "app_id")
_KNOWN: Final = FOR_PEOPLE | {*_TEXTS, "queue", "priority", "timestamp", "headers", "body", "body_base64"}


class InvalidLine(ValueError):
    """A line that holds no dead letter; the message says why."""


def exported(found: DeadLetterFacts) -> str:
    """Return one line, without its end, of a dead letter whose body is whole.

    The body is text where it is UTF-8, else `body_base64`.
    """
    dead_letter = found.dead_letter
    try:
        body = {"body": dead_letter.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(dead_letter.body).decode()}
    document = {
        "id": found.id,
        "queue": dead_letter.queue,
        "reason": found.reason,
        "dead_since": None if found.dead_since is None else format_timestamp(found.dead_since),
        **{name: getattr(dead_letter, name) for name in _TEXTS},
        "priority": dead_letter.priority,
        "timestamp": None if dead_letter.timestamp is None else format_timestamp(dead_letter.timestamp),
        "headers": dict(dead_letter.headers),
        **body,
    }
    fields = {name: value for name, value in document.items() if value is not None}
    line = json.dumps(fields, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        # A publisher may have written half a surrogate pair, which only an escape can represent.
        return json.dumps(fields)
    return line


def imported(line: str) -> DeadLetter:
    """Return the dead letter of a line; InvalidLine when there is none."""
    try:
        document = json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        # Its own words name a line of this text, which is another one of the file.
        raise InvalidLine(f"is no JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidLine(f"is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidLine("is no JSON object")
    if unknown := sorted(document.keys() - _KNOWN):
        raise InvalidLine(f"has the unknown field {unknown[0][:SHOWN]!r}")
    headers = document.get("headers", {})
    if not isinstance(headers, dict):
        raise InvalidLine("headers: must be an object")
    queue = _text(document, "queue")
    if not queue:
        raise InvalidLine("queue: must name the dead-letter queue it was in")
    return DeadLetter(
        queue=queue,
        body=_body(document),
        headers=headers,
        priority=_priority(document),
        timestamp=_timestamp(document),
        type=_text(document, "type"),
        correlation_id=_text(document, "correlation_id"),
        message_id=_text(document, "message_id"),
        content_type=_text(document, "content_type"),
        app_id=_text(document, "app_id"),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidLine(f"is no JSON: {name} is no number")


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidLine(f"{name}: must be text")
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidLine(f"{name}: {error}") from None
    return value


def _body(document: Mapping[str, Any]) -> bytes:
    match document:
        case {"body": str(body), **rest} if "body_base64" not in rest:
            try:
                return body.encode()
            except UnicodeEncodeError as error:
                raise InvalidLine(f"body: {error}") from None
        case {"body_base64": str(encoded), **rest} if "body" not in rest:
            try:
                return base64.b64decode(encoded, validate=True)
            except ValueError as error:
                raise InvalidLine(f"body_base64: {error}") from None
    raise InvalidLine("needs one of body (text) and body_base64 (text)")


def _priority(document: Mapping[str, Any]) -> int | None:
    value = document.get("priority")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255):  # noqa: PLR2004  an octet
        return value
    raise InvalidLine("priority: must be a number from 0 to 255")


def _timestamp(document: Mapping[str, Any]) -> Any:
    text = _text(document, "timestamp")
    try:
        return None if text is None else parse_timestamp(text)
    except ValueError:
        raise InvalidLine(f"timestamp: {(text or '')[:SHOWN]!r} is no RFC 3339 time") from None
