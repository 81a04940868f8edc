"""The contract of dead-letter queues: look at dead letters, take them out, put them back.

It is separate from `protocol.Broker`, because only tools for people need it: the services only publish and
consume. A stranger may have published many large messages, so no implementation holds all bodies at once.
"""

import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Protocol

from solstice_common.broker.dead_letters.hashed_bodies import LargeBody
from solstice_common.broker.headers import without_broker_headers
from solstice_common.broker.protocol import HELD_BODY_BYTES, NO_HEADERS, Published
from solstice_common.values.times import format_timestamp

ID_DIGITS: Final = 16
"""Digits of SHA-256: in one of 37 million queues with a million dead letters, two share an id."""


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message of a dead-letter queue, as its publisher wrote it.

    `headers` hold what JSON can hold; see `plain`.
    """

    queue: str
    body: bytes
    """Of a body above HELD_BODY_BYTES only the beginning, unless it was asked for whole."""
    large: LargeBody | None = None
    """The facts of a body that `body` only begins."""
    headers: Mapping[str, Any] = field(default_factory=lambda: NO_HEADERS)
    type: str | None = None
    correlation_id: str | None = None
    """The request id, of our own messages."""
    message_id: str | None = None
    priority: int | None = None
    timestamp: datetime | None = None
    """When the message was first published, by its publisher's clock; in whole seconds."""
    content_type: str | None = None
    app_id: str | None = None

    @cached_property
    def id(self) -> str:
        """The identity: equal for copies of this message, on every broker and in every export.

        The broker's own headers are not part of it, since reading a queue may change them. The queue is not
        part of it either: an export may be imported into a queue of another name.
        """
        parts = [
            self.message_id,
            self.correlation_id,
            self.type,
            self.priority or 0,
            None if self.timestamp is None else int(self.timestamp.timestamp()),
            without_broker_headers(self.headers),
        ]
        facts = json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()
        # A large body may have been left out, so its digest stands for it.
        content = self.digest if self.size > HELD_BODY_BYTES else self.body
        return sha256(len(facts).to_bytes(8) + facts + content).hexdigest()[:ID_DIGITS]

    @property
    def size(self) -> int:
        """The bytes of the whole body."""
        return len(self.body) if self.large is None else self.large.size

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the whole body."""
        return sha256(self.body).digest() if self.large is None else self.large.digest


See = Callable[[DeadLetter], None]
"""Is shown a dead letter, and may keep what it needs of it."""
Progress = Callable[[int], None]
"""Called with the number of dead letters that are done."""
Handle = Callable[[Sequence[DeadLetter]], Awaitable[Collection[str]]]
"""Handles a group of dead letters; returns the ids of those that may be removed now."""
Enough = Callable[[], bool]
"""Whether a handler needs no further group."""


def no_progress(_done: int) -> None:
    """Report nothing."""


def never_enough() -> bool:
    """Pass on all groups."""
    return False


class DeadLetterQueue(Protocol):
    """One dead-letter queue. Each method raises BrokerUnavailable when the broker does not answer.

    A queue that does not exist is an empty one.
    """

    @property
    def name(self) -> str: ...

    async def count(self) -> int | None:
        """Return how many dead letters wait; None when there is no such queue."""
        ...

    async def in_use(self) -> int | None:
        """Return how many dead letters other readers hold.

        None when there are other readers, and the broker does not say how many they hold.
        """
        ...

    async def browse(self, limit: int, see: See, *, whole: bool = False) -> None:
        """Show up to `limit` dead letters to `see`, one by one, in order.

        All stay in the queue. With `whole`, large bodies are whole, too; each has to fit into memory.

        Repeated calls lose no dead letter, and change no place, id or content. A copy that an interrupted
        `take` or `browse` left behind has the id of its original. Messages that another reader holds are not
        shown. An exception of `see` ends the call.
        """
        ...

    async def take(self, handle: Handle, limit: int, *, enough: Enough = never_enough) -> int:
        """Pass up to `limit` dead letters to `handle`; return how many were removed.

        They come in small groups, until it is `enough`.

        A dead letter is removed after `handle` returned its id, never before. Interrupted at any moment, even by
        SIGKILL, it loses none: those whose removal did not reach the broker come again. The rest keep their places.
        """
        ...

    async def purge(self, on_progress: Progress = no_progress) -> int:
        """Remove all that wait; return how many. `on_progress` is called with the number so far."""
        ...

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        """Add dead letters to the queue's end, under the same ids; returns one outcome each."""
        ...


class DeadLetterQueues(Protocol):
    """A connection for managing dead letters.

    Opened by `solstice_common.broker.open_dead_letter_queues`.
    """

    @property
    def url(self) -> str:
        """The broker's address without its password."""
        ...

    def queue(self, name: str) -> DeadLetterQueue: ...


async def take_all(queue: DeadLetterQueue, on_progress: Progress) -> int:
    """Remove all that wait, for a broker that cannot do so at once."""
    passed = 0

    async def choose_all(group: Sequence[DeadLetter]) -> Collection[str]:
        nonlocal passed
        on_progress(passed)  # of this group nothing is removed yet
        passed += len(group)
        return [each.id for each in group]

    removed = await queue.take(choose_all, await queue.count() or 0)
    on_progress(removed)
    return removed


def plain(value: Any) -> Any:
    """Return a header's value as JSON can hold it: numbers, text, booleans, lists and objects.

    Times become RFC 3339; bytes become text, with escapes for what is not UTF-8.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case datetime():
            return format_timestamp(value)
        case Mapping():
            return {str(name): plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return value if isinstance(value, float) and math.isfinite(value) else str(value)
