"""Encodes AMQP frames, and splits a stream of bytes into frames.

aiormq's own receiver awaits three reads for each frame, and a delivery is three frames; here a piece of the stream is
split into all the frames it holds. The most frequent frames are read here, the rest by pamqp; the properties of a
message only when they are needed: most readers want the body alone.

Source: the AMQP 0-9-1 specification, sections 2.3.5 (frames), 4.2.3 and 4.2.5 (their layout and field types).
"""

import struct
from asyncio import StreamReader
from collections import deque
from collections.abc import Callable
from typing import Final, Self

import pamqp.frame
from aiormq.connection import ReceivedFrame
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.exceptions import PAMQPException
from pamqp.frame import FrameTypes

from solstice_common.broker.rabbitmq.received_properties import read_properties

PIECE_BYTES: Final = 256 * 1024

_HEAD: Final = struct.Struct(">BHI")
METHOD, HEADER, BODY = 1, 2, 3
_END: Final = 0xCE
_DELIVER: Final = struct.pack(">HH", 60, 60)
_TAG_AND_BITS: Final = struct.Struct(">QB")
_BODY_SIZE: Final = struct.Struct(">4xQ")
_CONTENT: Final = struct.Struct(">HHQ")
_BASIC, _WEIGHT = 60, 0


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode a whole frame: METHOD, HEADER or BODY."""
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def content_header(properties: bytes, body_size: int) -> bytes:
    """The payload of a message's HEADER frame. `properties` are their flags and values."""
    return _CONTENT.pack(_BASIC, _WEIGHT, body_size) + properties


class UnreadHeader:
    """The content header of a message, read up to its body's size."""

    __slots__ = ("_data", "body_size")

    def __init__(self, data: bytes) -> None:
        self._data = data
        (self.body_size,) = _BODY_SIZE.unpack_from(data)

    def read(self) -> spec.Basic.Properties:
        """Read the properties, as far as that is possible.

        Never raises: a strange message must not end the connection, on which it would come again and again.
        """
        try:
            return read_properties(self._data)
        except Exception:  # noqa: BLE001  a mistake of ours in reading must not end the process either
            return spec.Basic.Properties()


Received = tuple[int, int, FrameTypes | UnreadHeader]
Take = Callable[[int, FrameTypes | UnreadHeader], bool]


class FrameStream:
    """Replaces aiormq's `FrameReceiver` after the handshake.

    A frame that `take` accepts, by channel, is not passed to aiormq, which spends several calls on each frame. Frames
    of a piece that `take` accepts come before those that are passed on. The last frame of a piece always is passed on:
    by it aiormq knows that the link is alive.
    """

    def __init__(self, reader: StreamReader, take: Take) -> None:
        self._reader = reader
        self._take = take
        self._cut = FrameSplitter()
        self._frames: deque[Received] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        while not self._frames:
            try:
                piece = await self._reader.read(PIECE_BYTES)
            except OSError as error:
                raise AMQPConnectionError(f"Server communication error: {error!r}") from error
            if not piece:
                raise AMQPConnectionError("Server connection unexpectedly closed")
            received, take = self._cut(piece), self._take
            last = len(received) - 1
            self._frames.extend(
                each for at, each in enumerate(received) if at == last or not take(each[1], each[2])
            )
        return self._frames.popleft()


class FrameSplitter:
    """Splits pieces of a stream into frames. An incomplete frame waits for the next piece."""

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, piece: bytes) -> list[Received]:
        """The frames that are complete now, in order.

        Raises InvalidFrameError when the bytes are no frames.
        """
        data = self._rest + piece if self._rest else piece
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
                frames.append((end + 1 - start, channel, ContentBody(data[begin:end])))
            elif kind == HEADER:
                frames.append((end + 1 - start, channel, UnreadHeader(data[begin:end])))
            elif kind == METHOD and data.startswith(_DELIVER, begin):
                frames.append((end + 1 - start, channel, _deliver(data, begin + len(_DELIVER))))
            else:
                frames.append(_by_pamqp(data[start : end + 1]))
            start = end + 1
        self._rest = data[start:]
        return frames


def _deliver(data: bytes, at: int) -> spec.Basic.Deliver:
    """The arguments of a `basic.deliver`: three short strings around the tag and the flag."""
    # Filled in afterwards: pamqp's constructor refuses names that RabbitMQ allows.
    deliver = spec.Basic.Deliver()
    deliver.consumer_tag, at = _short_string(data, at)
    deliver.delivery_tag, bits = _TAG_AND_BITS.unpack_from(data, at)
    deliver.redelivered = bool(bits & 1)
    deliver.exchange, at = _short_string(data, at + _TAG_AND_BITS.size)
    deliver.routing_key, _ = _short_string(data, at)
    return deliver


def _short_string(data: bytes, at: int) -> tuple[str, int]:
    begin = at + 1
    end = begin + data[at]
    return data[begin:end].decode("utf-8", "replace"), end


def _by_pamqp(frame: bytes) -> ReceivedFrame:
    try:
        return pamqp.frame.unmarshal(frame)
    except PAMQPException as error:
        raise InvalidFrameError(str(error)) from error
