"""Encodes AMQP frames, and splits a stream of bytes into frames.

aiormq awaits three reads for each frame, and a delivery is three frames. This module splits a piece of the
stream into all its frames at once, and passes aiormq those that it needs. It decodes the most frequent frames
itself, and lets pamqp decode the rest. The properties of a message are decoded only on demand: most readers
need only the body.

Source: the AMQP 0-9-1 specification, sections 2.3.5 (frames), 4.2.3 and 4.2.5 (their layout and field types).
"""

import struct
import time
from asyncio import StreamReader
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pamqp.frame
from aiormq.exceptions import InvalidFrameError
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.exceptions import PAMQPException
from pamqp.frame import FrameTypes
from pamqp.heartbeat import Heartbeat

from solstice_common.broker.rabbitmq.received_properties import read_header, read_headers, read_properties

PIECE_BYTES: Final = 256 * 1024
ALIVE_SECONDS: Final = 0.5
"""Seconds after which aiormq, which sees no content, gets a heartbeat, so that it knows that the link is
alive.
"""

_HEAD: Final = struct.Struct(">BHI")
METHOD, HEADER, BODY = 1, 2, 3
_END: Final = 0xCE
DELIVER: Final = struct.pack(">HH", 60, 60)
TAG_AND_BITS: Final = struct.Struct(">QB")
_BODY_SIZE: Final = struct.Struct(">4xQ")
_CONTENT: Final = struct.Struct(">HHQ")
_BASIC, _WEIGHT = 60, 0
_HEARTBEAT: Final = Heartbeat().marshal()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode a whole frame: METHOD, HEADER or BODY."""
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def content_header(properties: bytes, body_size: int) -> bytes:
    """Return the payload of a message's HEADER frame. `properties` are their flags and values."""
    return _CONTENT.pack(_BASIC, _WEIGHT, body_size) + properties


class UnreadHeader:
    """The content header of a message, read up to its body's size."""

    __slots__ = ("body_size", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        (self.body_size,) = _BODY_SIZE.unpack_from(data)

    def read(self) -> spec.Basic.Properties:
        """Read the properties, as far as that is possible.

        Never raises: a malformed message must not end the connection, since the broker would deliver it again
        and again.
        """
        try:
            return read_properties(self.data)
        except Exception:  # noqa: BLE001  a bug in reading must not end the process either
            return spec.Basic.Properties()

    def read_headers(self) -> Mapping[str, object]:
        """Read only the table of headers, as far as that is possible."""
        try:
            return read_headers(self.data)
        except Exception:  # noqa: BLE001  a bug in reading must not end the process either
            return {}

    def read_header(self, name: str) -> object:
        """Read one header alone; None without it, and where it cannot be read."""
        try:
            return read_header(self.data, name)
        except Exception:  # noqa: BLE001  a bug in reading must not end the process either
            return None


Received = tuple[int, FrameTypes | UnreadHeader, bytes]
"""The channel of a frame, the frame, and its bytes, which are empty for the content of messages."""
Take = Callable[[int, FrameTypes | UnreadHeader], bool]


class FrameFilter:
    """A reader of a connection; `rest` gets the frames that `take` does not accept.

    `take` is called by channel. A frame that it accepts is not passed on to aiormq, which spends several
    calls on each frame. The content of messages is never passed on.
    """

    def __init__(self, reader: StreamReader, take: Take) -> None:
        self.rest: Final = StreamReader()
        self._reader = reader
        self._take = take
        self._cut = FrameSplitter()
        self._fed_at = 0.0

    async def run(self) -> None:
        """Read until the end of the connection, which `rest` shares."""
        try:
            while piece := await self._reader.read(PIECE_BYTES):
                self._divide(piece)
        except Exception as error:  # noqa: BLE001  any error ends the connection: aiormq raises it
            self.rest.set_exception(error)
        else:
            self.rest.feed_data(self._cut.rest)
            self.rest.feed_eof()

    def _divide(self, piece: bytes) -> None:
        left = self._left(self._cut(piece))
        now = time.monotonic()
        if not left and now - self._fed_at > ALIVE_SECONDS:
            left = _HEARTBEAT
        if left:
            self._fed_at = now
            self.rest.feed_data(left)

    def _left(self, frames: Sequence[Received]) -> bytes:
        """Return what of these frames is passed on."""
        return b"".join([raw for channel, frame, raw in frames if not self._take(channel, frame)])


class FrameSplitter:
    """A splitter of a stream into frames. An incomplete frame waits for the next piece."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of an incomplete frame."""

    def __call__(self, piece: bytes) -> list[Received]:
        """Return the frames that are complete now, in order.

        Raises InvalidFrameError when the bytes are no frames.
        """
        data = self.rest + piece if self.rest else piece
        frames: list[Received] = []
        start, size = 0, len(data)
        while size - start >= _HEAD.size:
            kind, channel, length = _HEAD.unpack_from(data, start)
            begin = start + _HEAD.size
            end = begin + length
            if size <= end:
                break
            if data[end] != _END:
                raise InvalidFrameError(f"a frame of kind {kind} does not end where it says")
            if kind == BODY:
                frames.append((channel, ContentBody(data[begin:end]), b""))
            elif kind == HEADER:
                frames.append((channel, UnreadHeader(data[begin:end]), b""))
            elif kind == METHOD and data.startswith(DELIVER, begin):
                frames.append((channel, _deliver(data, begin + len(DELIVER)), b""))
            else:
                raw = data[start : end + 1]
                frames.append((channel, _by_pamqp(raw), raw))
            start = end + 1
        self.rest = data[start:]
        return frames


def _deliver(data: bytes, at: int) -> spec.Basic.Deliver:
    """Return the arguments of a `basic.deliver`: three short strings around the tag and the flag."""
    # Filled in afterwards: pamqp's constructor refuses names that RabbitMQ allows.
    deliver = spec.Basic.Deliver()
    deliver.consumer_tag, at = _short_string(data, at)
    deliver.delivery_tag, bits = TAG_AND_BITS.unpack_from(data, at)
    deliver.redelivered = bool(bits & 1)
    deliver.exchange, at = _short_string(data, at + TAG_AND_BITS.size)
    deliver.routing_key, _ = _short_string(data, at)
    return deliver


def _short_string(data: bytes, at: int) -> tuple[str, int]:
    begin = at + 1
    end = begin + data[at]
    return data[begin:end].decode("utf-8", "replace"), end


def _by_pamqp(frame: bytes) -> FrameTypes:
    try:
        return pamqp.frame.unmarshal(frame)[2]
    except PAMQPException as error:
        raise InvalidFrameError(str(error)) from error
