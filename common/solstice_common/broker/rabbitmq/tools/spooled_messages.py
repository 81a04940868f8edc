"""Receives the messages of one channel piece by piece, and holds no large body."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from pamqp import commands as spec
from pamqp.body import ContentBody

from solstice_common.broker.dead_letters.hashed_bodies import HashedBody, LargeBody
from solstice_common.broker.protocol import HELD_BODY_BYTES
from solstice_common.broker.rabbitmq.frames import UnreadHeader

SPOOLED_BYTES: Final = 8 << 20
"""How many bytes a spool keeps in memory before it writes to the disk."""
UNLIMITED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunMessage:
    """A message of which the body is about to arrive."""

    tag: int
    redelivered: bool
    header: UnreadHeader


class DeliveryHandler(Protocol):
    """A receiver of each message of a channel: `begin`, the pieces of its body, `end`."""

    def begin(self, arrival: BegunMessage) -> None: ...

    def add(self, piece: bytes) -> None: ...

    def end(self) -> None: ...


class ChannelDeliveries:
    """The messages that have arrived on one channel, by their delivery tags."""

    def __init__(self, receiver: DeliveryHandler) -> None:
        self.tags: list[int] = []
        self.error: Exception | None = None
        """The receiver's; after it, further messages are only counted."""
        self._receiver: DeliveryHandler | None = receiver
        self._deliver: spec.Basic.Deliver | None = None
        self._missing: int | None = None
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """Pass on nothing more."""
        self._receiver = None

    async def wait(self, count: int, seconds: float) -> bool:
        """Wait up to `seconds` for a further message; return whether `count` are there."""
        self._changed.clear()
        if len(self.tags) < count:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        return len(self.tags) >= count

    def take(self, frame: object) -> bool:
        """Take a frame that belongs to a delivery; return whether it was one."""
        match frame:
            case spec.Basic.Deliver():
                self._deliver = frame
            case UnreadHeader() if self._deliver is not None:
                self._missing = frame.body_size
                arrival = BegunMessage(
                    tag=self._deliver.delivery_tag or 0,
                    redelivered=bool(self._deliver.redelivered),
                    header=frame,
                )
                self._pass_on(lambda receiver: receiver.begin(arrival))
            case ContentBody() if self._missing is not None:
                self._missing -= len(frame.value)
                self._pass_on(lambda receiver: receiver.add(frame.value))
            case _:
                return False
        if self._deliver is not None and self._missing is not None and self._missing <= 0:
            self._pass_on(lambda receiver: receiver.end())
            self.tags.append(self._deliver.delivery_tag or 0)
            self._deliver = self._missing = None
            self._changed.set()
        return True

    def _pass_on(self, work: Callable[[DeliveryHandler], None]) -> None:
        if self._receiver is not None and self.error is None:
            try:
                work(self._receiver)
            except Exception as error:  # noqa: BLE001  the reader raises it: here it would end the connection
                self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A message in a spool: where it is, and how large."""

    tag: int
    redelivered: bool
    at: int
    header_bytes: int
    body_bytes: int
    """What the spool has of the body."""
    large: LargeBody | None
    """The facts of a body that the spool only begins."""


class NoRoom(Exception):
    """The disk takes no more."""


class Spool:
    """Messages on the disk while they are held, in a file without a name."""

    def __init__(self, *, whole: bool = False, on_disk: bool = True) -> None:
        """With `whole` it keeps large bodies whole, else their beginnings."""
        self.messages: list[Spooled] = []
        self._whole = whole
        most = SPOOLED_BYTES if on_disk else UNLIMITED
        self._file = tempfile.SpooledTemporaryFile(max_size=most)  # noqa: SIM115  closed by `__exit__`
        self._size = 0
        self._arrival: BegunMessage | None = None
        self._at = 0
        self._large: HashedBody | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of a full disk, again: it flushes what it could not write before
            self._file.close()

    def begin(self, arrival: BegunMessage) -> None:
        self._arrival, self._at = arrival, self._size
        size = arrival.header.body_size
        self._large = None if self._whole or size <= HELD_BODY_BYTES else HashedBody(size)
        self._write(arrival.header.data)

    def add(self, piece: bytes) -> None:
        if self._large is None:
            self._write(piece)
        else:
            self._large.add(piece)

    def end(self) -> None:
        arrival, large = self._arrival, None
        if arrival is None:
            return
        if self._large is not None:
            held, large = self._large.read()
            self._write(held)
        header_bytes = len(arrival.header.data)
        self.messages.append(
            Spooled(
                tag=arrival.tag,
                redelivered=arrival.redelivered,
                at=self._at,
                header_bytes=header_bytes,
                body_bytes=self._size - self._at - header_bytes,
                large=large,
            )
        )

    def read(self, message: Spooled) -> tuple[UnreadHeader, bytes]:
        """Return the header of a message, and what the spool has of its body."""
        self._file.seek(message.at)
        header, body = self._file.read(message.header_bytes), self._file.read(message.body_bytes)
        self._file.seek(self._size)
        return UnreadHeader(header), body

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise NoRoom(
                f"held messages do not fit into temporary files ({error.strerror}): make room for them, or set TMPDIR"
            ) from error
        self._size += len(data)
