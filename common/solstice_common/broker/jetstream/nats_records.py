"""Writes a message as a NATS message, and reads it and refusals again. Pure.

The body is the payload, byte for byte. Everything else is in one header, `Solstice-Meta`, as one JSON object
in ASCII: the client library changes spaces and newlines in headers. A message without this header is valid,
too: only its body is required.

docs/messages.md describes the layout for publishers in other languages.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import msgspec

from solstice_common.broker.headers import DETAIL_HEADER, OWN_PREFIX, bounded_meta, without_broker_headers
from solstice_common.broker.protocol import Message
from solstice_common.values.times import format_timestamp

META_HEADER: Final = "Solstice-Meta"
MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"
HEADER_BYTES: Final = 65_535
"""The size of headers that JetStream accepts (otherwise its error 10097)."""
_SHORT_DETAIL_CHARACTERS: Final = 256
_FIRST_LINE: Final = b"NATS/1.0\r\n"
_STATUS: Final = b"NATS/1.0 "
_PLAIN: Final = frozenset({str, int, bool})
_FIXED_BYTES: Final = len("NATS/1.0\r\n\r\n") + len(f"{META_HEADER}: \r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsRecord:
    """A NATS message: the payload, and the header's properties without the message id."""

    exchange: str
    routing_key: str
    body: bytes
    meta: Mapping[str, object]
    repeat_key: str | None = None
    """The key by which the server recognises a repeat of this message."""
    is_repeat: bool = False

    def header(self, message_id: str | None) -> str:
        """Return the value of `Solstice-Meta` under a fresh message id.

        None where `Nats-Msg-Id` says it.
        """
        return _in_ascii(self.meta if message_id is None else {**self.meta, "message_id": message_id})


def _in_ascii(meta: Mapping[str, object]) -> str:
    """Return properties as one JSON object in ASCII.

    TypeError or ValueError for what JSON cannot say. msgspec takes a tenth of the time; `json` writes what it cannot write, or would write in another way.
    """
    headers = meta.get("headers")
    if headers is None or (isinstance(headers, dict) and _PLAIN.issuperset(map(type, headers.values()))):
        with suppress(OverflowError, ValueError):
            text = msgspec.json.encode(meta)
            if text.isascii():
                return text.decode()
    return json.dumps(meta, separators=(",", ":"))


def is_readable(head: bytes) -> bool:
    """Whether nats-py reads on behind this head of a message; an empty one means none.

    It wants the first line, and of the server's own statuses UTF-8; the rest may be anything.
    """
    if not head.startswith(_STATUS):
        return not head or head.startswith(_FIRST_LINE)
    try:
        head.decode()
    except UnicodeDecodeError:
        return False
    return True


def record_of(message: Message, *, repeat_key: str | None = None, is_repeat: bool = False) -> NatsRecord:
    """The record of a message to publish. ValueError for text that no broker can carry."""
    for text in (message.exchange, message.routing_key, message.type, message.correlation_id or ""):
        text.encode()
    meta: dict[str, object] = {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "type": message.type,
        "timestamp": format_timestamp(message.timestamp),
        "content_type": message.content_type,
        "app_id": message.app_id,
    }
    if message.correlation_id is not None:
        meta["correlation_id"] = message.correlation_id
    if message.priority is not None:
        meta["priority"] = message.priority
    if headers := without_broker_headers(message.headers):
        meta["headers"] = headers
    return NatsRecord(
        exchange=message.exchange,
        routing_key=message.routing_key,
        body=message.body,
        meta=without_known(meta),
        repeat_key=repeat_key,
        is_repeat=is_repeat,
    )


def without_known(meta: Mapping[str, object]) -> dict[str, object]:
    """Return properties without those that `read_meta` adds.

    A missing one that it would add is None. The server syncs each message by itself: a message with 250 bytes of properties less is stored a tenth sooner.
    """
    known = _known(meta)
    return {name: value for name, value in meta.items() if known.get(name) != value} | {
        name: None for name in known if name not in meta
    }


def _known(meta: Mapping[str, object]) -> dict[str, str]:
    """Return what properties mean that are absent beside these."""
    kind = meta.get("type")
    return {"content_type": "application/json"} | ({"routing_key": kind} if isinstance(kind, str) else {})


def dead_letter_record(
    exchange: str, routing_key: str, body: bytes, meta: Mapping[str, Any], headers: Mapping[str, object]
) -> NatsRecord:
    """Return the record of a dead letter: the message's own properties, with the refusal's headers.

    Its own headers and properties give way where all do not fit, the largest first: the refusal must reach the
    dead-letter queue.
    """
    properties = {**meta, "routing_key": routing_key}
    for replaced in ("message_id", "exchange", "headers"):
        properties.pop(replaced, None)
    own_headers = {name: value for name, value in headers.items() if isinstance(value, str | int | bool)}

    def record() -> NatsRecord:
        return NatsRecord(
            exchange=exchange,
            routing_key=routing_key,
            body=body,
            meta={**properties, "exchange": exchange, "headers": own_headers},
        )

    foreign = sorted(
        [(_size(properties, name), name, properties) for name in properties]
        + [
            (_size(own_headers, name), name, own_headers)
            for name in own_headers
            if not name.startswith(OWN_PREFIX)
        ],
        key=itemgetter(0),
    )
    while (excess := header_bytes(record().header("0" * 64)) - HEADER_BYTES) > 0:
        if foreign:
            # Several at once: a stranger may have written thousands.
            while foreign and excess > 0:
                size, name, where = foreign.pop()
                del where[name]
                excess -= size
        elif len(str(own_headers.get(DETAIL_HEADER, ""))) > _SHORT_DETAIL_CHARACTERS:
            own_headers[DETAIL_HEADER] = str(own_headers[DETAIL_HEADER])[:_SHORT_DETAIL_CHARACTERS]
        else:
            own_headers = {
                name: value
                for name, value in own_headers.items()
                if _size(own_headers, name) <= HEADER_BYTES // 16
            }
            break
    return record()


def header_bytes(value: str) -> int:
    """Return the bytes of all headers on the wire, with this value of `Solstice-Meta` alone."""
    return _FIXED_BYTES + len(value)


def read_meta(headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the properties of a received message, within bounds.

    A header that is no JSON object says none; what another leaves out as known is there. The message id is that
    of `Nats-Msg-Id` where the header says no other.
    """
    received = headers or {}
    meta: dict[str, Any] = {}
    with suppress(ValueError, RecursionError):
        # As text: of a header that is not UTF-8, nats-py gives an `email.header.Header`.
        if meta := bounded_meta(json.loads(str(received.get(META_HEADER, "{}")))):
            meta = {**_known(meta), **meta}
    if MESSAGE_ID_HEADER in received:
        meta.setdefault("message_id", str(received[MESSAGE_ID_HEADER]))
    return meta


def meta_of_head(head: bytes) -> dict[str, Any]:
    """Return the properties in the bytes of a head.

    They are those that `read_meta` returns of what nats-py reads of it: behind a status alone, nothing.
    """
    if head.startswith(_STATUS) and not head.partition(b"\r\n")[2].removesuffix(b"\r\n"):
        return {}
    lines = (line.partition(b":") for line in head[len(_FIRST_LINE) :].split(b"\r\n"))
    known = {name.encode(): name for name in (META_HEADER, MESSAGE_ID_HEADER)}
    return read_meta(
        {
            known[name.strip()]: value.strip().decode(errors="replace")
            for name, colon, value in lines
            if colon and name.strip() in known
        }
    )


def text_of(meta: Mapping[str, Any], name: str) -> str | None:
    """Return a property that must be text: a foreign publisher may have written anything."""
    value = meta.get(name)
    return value if isinstance(value, str) else None


def headers_of(meta: Mapping[str, Any]) -> dict[str, object]:
    """Return the headers of a received message, without those that only a broker may write."""
    headers = meta.get("headers")
    return without_broker_headers(headers) if isinstance(headers, dict) else {}


def _size(headers: Mapping[str, object], name: str) -> int:
    return len(json.dumps({name: headers[name]}))


_DENIED: Final = re.compile(
    r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE
)
_OWN: Final = re.compile(r"^(\$js\.|\$kv\.|_inbox\.)", re.IGNORECASE)
_WORDS: Final = frozenset(
    {
        *(
            "$js",
            "$kv",
            "_inbox",
            "ack",
            "api",
            "consumer",
            "create",
            "delete",
            "direct",
            "durable",
            "get",
            "info",
        ),
        *("list", "msg", "names", "next", "purge", "stream", "update"),
    }
)


def denied_subject(error: str) -> tuple[str, str] | None:
    """Return the right, `publish` or `subscribe`, and the subject; None for another error.

    nats-py makes the whole refusal lower case; the subjects of JetStream's own API are written back as they are.
    """
    found = _DENIED.search(error)
    if found is None:
        return None
    right = "publish" if found[1].lower() == "publish" else "subscribe"
    return right, restored(found[2])


def restored(subject: str) -> str:
    """Return a subject of JetStream with the case that it has; others as they are."""
    if _OWN.match(subject) is None:
        return subject
    words = [word.upper() if word in _WORDS else word for word in subject.split(".")]
    return ".".join(re.sub("^kv_", "KV_", word) for word in words)
