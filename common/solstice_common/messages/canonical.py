"""Reads messages strictly, and writes them as canonical bytes.

Canonical: UTF-8 JSON, keys sorted at every level, no white space, a field that was never set is left out. Fields this
version does not know are kept, so decoding and encoding a canonical message gives the same bytes, and an older
service never strips what a newer one added.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from solstice_common.errors import InvalidMessage
from solstice_common.values.validation import in_words

MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Far larger than any real request, far below the 16 MiB that RabbitMQ 4 allows."""

_URLS: Final = ("repo_url", "head_repo_url")
"""Fields that validation changes into their canonical form."""


class WirePart(BaseModel):
    """An object in a message, as strict and as lenient as the message."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)


class WireMessage(BaseModel):
    """A message on the wire: strict in known fields, lenient with unknown ones."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)

    VERSION: ClassVar[str]

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a message.

        Raises InvalidMessage; its reason is one of `oversize`, `not_utf8`, `not_json`, `not_an_object`,
        `unknown_version`, `invalid_field`.
        """
        if len(body) > MAX_MESSAGE_BYTES:
            raise InvalidMessage("oversize", f"{len(body)} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
        try:
            message = cls.model_validate_json(body)
        except ValidationError as error:
            raise _diagnose(cls.VERSION, body, error) from None
        _refuse_infinite_in(message)
        _refuse_doubled(body)
        return message

    @classmethod
    def compose(cls, fields: Mapping[str, object]) -> tuple[Self, bytes]:
        """Return the message of these fields and its canonical bytes.

        `model_validate` and `encode` in one; all fields are ours.

        Raises pydantic's ValidationError, and InvalidMessage for a field that is not known.
        """
        message = cls.model_validate(fields)
        if message.model_extra:
            raise InvalidMessage("invalid_field", f"not known here: {', '.join(message.model_extra)}")
        # Strict validation changed no value but URLs, so it would dump the fields as they were given.
        changed = {
            name: url
            for name in _URLS
            if (url := fields.get(name)) is not None and getattr(message, name) != url
        }
        if changed:
            fields = {**fields, **{name: getattr(message, name) for name in changed}}
        return message, orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    def encode(self) -> bytes:
        """Return the canonical bytes; raises InvalidMessage when an unknown field holds what JSON cannot carry."""
        _refuse_infinite_in(self)
        try:
            document = self.model_dump(mode="json", exclude_unset=True)
            try:
                return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
            except orjson.JSONEncodeError:
                # An integer of more than 64 bits in a field we do not know: the slow way keeps it.
                text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                return text.encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidMessage("invalid_field", str(error)) from None


def _diagnose(expected: str, body: bytes, error: ValidationError) -> InvalidMessage:
    """Return why `body` is not an `expected`, in words for its author."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as undecodable:
        return InvalidMessage("not_utf8", f"byte {undecodable.start} is not UTF-8")
    problems = error.errors(include_url=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return InvalidMessage("not_json", problems[0]["msg"].removeprefix("Invalid JSON: "))
    document: Any = json.loads(body)
    if not isinstance(document, dict):
        return InvalidMessage(
            "not_an_object", f"a JSON object is needed, this is a {type(document).__name__}"
        )
    version = document.get("schema_version")
    if version is not None and version != expected:
        return InvalidMessage(
            "unknown_version", f"schema_version is {str(version)[:80]!r}, this service reads {expected!r}"
        )
    return InvalidMessage(
        "invalid_field",
        "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {in_words(problem)}" for problem in problems
        ),
    )


def _refuse_doubled(body: bytes) -> None:
    """Refuse an object with a repeated key.

    Readers disagree about which of the two counts.

    A message that orjson writes back unchanged has no repeated key, and nearly every message is such a one.
    Any other message is read once more, with a check of every key.
    """
    try:
        if orjson.dumps(orjson.loads(body)) == body:
            return
    except ValueError:
        pass  # it holds values that pydantic reads and orjson does not: NaN, half a surrogate pair
    json.loads(body, object_pairs_hook=_once_each, parse_int=str, parse_float=str)


def _once_each(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidMessage("invalid_field", f"{name[:80]}: stands twice in one object")
        seen.add(name)


def _refuse_infinite_in(message: BaseModel) -> None:
    """Refuse them in the message and in its parts."""
    _refuse_infinite(message.model_extra)
    for name in message.model_fields_set:
        value = getattr(message, name)
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, WirePart):
                _refuse_infinite_in(part)


def _refuse_infinite(extra: Mapping[str, Any] | None) -> None:
    """Refuse `NaN`, `Infinity` and 1e999 in unknown fields.

    They would be written as null.
    """
    for name, value in (extra or {}).items():
        if not _finite(value):
            raise InvalidMessage("invalid_field", f"{name}: holds a number that JSON cannot carry")


def _finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(_finite(part) for part in value.values())
        case list() | tuple():
            return all(_finite(part) for part in value)
        case _:
            return True
