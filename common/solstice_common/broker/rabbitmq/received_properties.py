"""Reads the properties of a received message, even when they are malformed.

Pure. RabbitMQ passes on tables nested thousands deep and strings that are not UTF-8. Each value is measured before
pamqp decodes it: pamqp recurses into tables, trusts their lengths, and gives up a whole header for one bad value.

Source: the AMQP 0-9-1 specification, sections 2.3.5.2 and 4.2.5; rabbitmq.com/docs/amqp-0-9-1-errata (field types).
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pamqp import commands as spec
from pamqp import decode, encode

from solstice_common.broker.headers import MAX_DEPTH, MAX_FIELDS

_PROPERTIES_AT: Final = 12
_LENGTH: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">H")
_MORE_FLAGS: Final = 1
_HEADERS: Final = spec.Basic.Properties.flags["headers"]
_CONTENT_TYPE: Final = spec.Basic.Properties.flags["content_type"]
_CONTENT_ENCODING: Final = spec.Basic.Properties.flags["content_encoding"]
"""Like the content type, a short string before the table of headers."""
_FIXED: Final = dict(zip(b"tbBsuIilLfdDTV\x00", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0, 0), strict=True))
"""The length of a value in bytes, by the letter of its type."""
_TEXT: Final = ord("S")
_SIZED: Final = frozenset(b"SxAF")
_NESTED: Final = frozenset(b"AF")
_WIDTHS: Final = {"octet": 1, "timestamp": 8}


class MalformedProperties(ValueError):
    """The bytes do not follow the layout, so the following properties cannot be found."""


def read_properties(header: bytes) -> spec.Basic.Properties:
    """Return the properties of a content header, except those that cannot be read."""
    properties = spec.Basic.Properties()
    with suppress(MalformedProperties):
        _read(header, properties)
    return properties


def read_headers(header: bytes) -> Mapping[str, Any]:
    """Return the header table alone, in a third of the time that `read_properties` takes."""
    with suppress(MalformedProperties):
        return _table(_header_table(header))
    return {}


def read_header(header: bytes, name: str) -> Any:
    """Return what `read_headers` finds under a name; None without it.

    For a text among texts and numbers, as in our own messages, that takes a third of the time.
    """
    # Without `suppress`: its calls take as long as all of this.
    try:
        start, end = _table_bounds(header)
        text = _text_among_plain(header, start, end, name)
        return next((value for _, value in _values(header[start:end], name)), None) if text is None else text
    except MalformedProperties:
        return None


def publishable(value: Any) -> Any:
    """Return a header value in a form that AMQP can carry, or None."""
    value = _without_text_that_is_none(value)
    try:
        encode.encode_table_value(value)
    except (TypeError, ValueError, OverflowError, ArithmeticError, struct.error):
        return None
    return value


def encoded_size(name: str, value: Any) -> int:
    """Return how many bytes a publishable header takes in a table."""
    return 1 + len(name.encode()) + len(encode.encode_table_value(value))


def _read(header: bytes, properties: spec.Basic.Properties) -> None:
    (flags,) = _unpack(_FLAGS, header, _PROPERTIES_AT)
    at = _PROPERTIES_AT + _FLAGS.size
    if flags & _MORE_FLAGS:
        raise MalformedProperties("AMQP 0-9-1 has no property behind the first fifteen")
    for name in properties.__slots__:
        if not flags & properties.flags[name]:
            continue
        kind = properties.amqp_type(name)
        end = _property_end(header, at, kind)
        value = header[at:end]
        read = _table(value[_LENGTH.size :]) if kind == "table" else _decoded(decode.METHODS[kind], value)
        if read is not None:
            setattr(properties, name, read)
        at = end


def _property_end(header: bytes, at: int, kind: str) -> int:
    if kind == "table":
        end = at + _LENGTH.size + _unpack(_LENGTH, header, at)[0]
    elif kind == "shortstr":
        end = at + 1 + _byte(header, at)
    else:
        end = at + _WIDTHS[kind]
    return _within(end, len(header))


def _table(data: bytes) -> dict[str, Any]:
    """Return the fields that can be read; the first of two with one name."""
    fields: dict[str, Any] = {}
    with suppress(MalformedProperties):
        for name, value in _values(data):
            fields.setdefault(name, value)
    return fields


def _header_table(header: bytes) -> bytes:
    """Return the bytes of the header table in a content header."""
    start, end = _table_bounds(header)
    return header[start:end]


def _table_bounds(header: bytes) -> tuple[int, int]:
    """Return where the fields of the header table begin and end in a content header."""
    at = _PROPERTIES_AT + _FLAGS.size
    try:
        (flags,) = _FLAGS.unpack_from(header, _PROPERTIES_AT)
        if not flags & _HEADERS or flags & _MORE_FLAGS:
            return at, at
        if flags & _CONTENT_TYPE:
            at += 1 + header[at]
        if flags & _CONTENT_ENCODING:
            at += 1 + header[at]
        (size,) = _LENGTH.unpack_from(header, at)
    except (struct.error, IndexError):
        raise MalformedProperties("the header ends before its table") from None
    start = at + _LENGTH.size
    return start, _within(start + size, len(header))


def _text_among_plain(data: bytes, at: int, end: int, name: str) -> str | None:
    """Return the text of a field behind texts and values of fixed lengths alone.

    None where that cannot be told. It takes few steps for each field. They cannot be skipped by where the field was last: RabbitMQ 4 orders headers
    by name, and those before it differ in length.
    """
    if "\\" in name:
        return None  # such a name may stand for bytes that are no UTF-8
    encoded = name.encode()
    try:
        for _ in range(MAX_FIELDS):
            if at >= end:
                break
            kind_at = at + 1 + data[at]
            found, kind = data[at + 1 : kind_at] == encoded, data[kind_at]
            if kind == _TEXT:
                text_at = kind_at + 1 + _LENGTH.size
                at = text_at + _LENGTH.unpack_from(data, kind_at + 1)[0]
                if found:
                    return data[text_at:at].decode() if at <= end else None
            elif found:
                break
            else:
                at = kind_at + 1 + _FIXED[kind]
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        pass
    return None


def _values(data: bytes, only: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the readable fields of a table, in order; with `only`, those of that name."""
    left = [MAX_FIELDS]
    for name, start, end in _fields(data):
        left[0] -= 1
        if left[0] < 0:
            return
        if data[start] in _NESTED and not _bounded(data[start:end], left):
            continue
        if only is None or name == only:
            value = _text(data, start, end) or _decoded(decode.embedded_value, data[start:end])
            if value is not None:
                yield name, value


def _fields(table: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the name, start and end of each value, including its type's letter."""
    at, size = 0, len(table)
    while at < size:
        start = at + 1 + table[at]
        text_at = start + 1 + _LENGTH.size
        if text_at <= size and table[start] == _TEXT:
            # Nearly all headers are text, and a signature is long: inline, these take half the time.
            end = text_at + _LENGTH.unpack_from(table, start + 1)[0]
            if end > size:
                raise MalformedProperties("a length leads behind the end")
        else:
            end = _value_end(table, _within(start, size), size)
        yield table[at + 1 : start].decode("utf-8", "backslashreplace"), start, end
        at = end


def _text(table: bytes, start: int, end: int) -> str | None:
    """Return the text in a field; None for values that pamqp has to decode.

    Those are other types, and bytes that are not UTF-8.
    """
    if table[start] != _TEXT:
        return None
    try:
        return table[start + 1 + _LENGTH.size : end].decode()
    except UnicodeDecodeError:
        return None


def _bounded(value: bytes, left: list[int]) -> bool:
    """Whether a table or array stays within MAX_DEPTH and `left` values. Without recursion."""
    at, ends = 0, [(len(value), False)]
    try:
        while ends:
            end, is_table = ends[-1]
            if at >= end:
                ends.pop()
                continue
            if is_table:
                at = _within(at + 1 + value[at], end)
            after = _value_end(value, at, end)
            left[0] -= 1
            if left[0] < 0:
                return False
            if value[at] not in _NESTED:
                at = after
                continue
            if len(ends) > MAX_DEPTH:
                return False
            ends.append((after, value[at] == ord("F")))
            at += 1 + _LENGTH.size
    except MalformedProperties:
        return False
    return True


def _value_end(data: bytes, at: int, end: int) -> int:
    kind = _byte(data, at)
    if kind in _SIZED:
        return _within(at + 1 + _LENGTH.size + _unpack(_LENGTH, data, at + 1)[0], end)
    if kind not in _FIXED:
        raise MalformedProperties(f"no type of field has the letter {kind}")
    return _within(at + 1 + _FIXED[kind], end)


def _decoded(read: Callable[[bytes], tuple[int, Any]], data: bytes) -> Any:
    try:
        return read(data)[1]
    except (ValueError, ArithmeticError, OSError, struct.error):
        # A time after the year 9999, or a text that is not UTF-8, costs this value alone.
        return None


def _without_text_that_is_none(value: Any) -> Any:
    match value:
        case bytes():
            return bytearray(value)
        case list():
            return [_without_text_that_is_none(part) for part in value]
        case dict():
            return {name: _without_text_that_is_none(part) for name, part in value.items()}
        case _:
            return value


def _unpack(layout: struct.Struct, data: bytes, at: int) -> tuple[Any, ...]:
    _within(at + layout.size, len(data))
    return layout.unpack_from(data, at)


def _byte(data: bytes, at: int) -> int:
    _within(at + 1, len(data))
    return data[at]


def _within(end: int, limit: int) -> int:
    if end > limit:
        raise MalformedProperties("a length leads behind the end")
    return end
