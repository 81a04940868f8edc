"""Batches of statuses: one transaction's messages in few rows of the outbox. Pure.

The statuses of one transaction are nearly the same text, so that many of them take little more room than their ids; and
each row costs a database the same, however small it is. What is left of a batch keeps its numbers: two publishers may
overlap, and a number that one of them confirms must not mean another message.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import msgpack
from zstandard import ZstdCompressionParameters, ZstdCompressor, ZstdDecompressor

from solstice_orchestrator.domain.statuses import Status, encode_status
from solstice_orchestrator.store.protocol import OutboxKind, OutboxMessage
from solstice_orchestrator.store.records.changes import RequestDeadLetter

MESSAGES_PER_BATCH: Final = 64
"""About six kilobytes of statuses: they fit on one page of PostgreSQL, together with the rest of their row."""
STATUSES: Final = "statuses"
"""The kind of a row that is a batch; every other row has the kind of its message."""

_INDEXES: Final = 1 << 8
_COMPRESSION: Final = ZstdCompressionParameters.from_level(1, min_match=7)
_idle: Final[list[ZstdCompressor]] = []
"""Idle compressors. One thread at a time uses each; making one takes half as long as using it. The list grows to the
largest number that ever compressed at once.
"""
_LARGEST: Final = 1 << 28
"""Far above the size of any batch; limits what a damaged row could expand to."""

_Contents = list[tuple[int, str, bytes]]
"""Index, request id and body of each status."""
_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(_Contents).decode


class OutboxBatch(NamedTuple):
    """A row of the outbox, without its id."""

    kind: str
    request_id: str
    """Empty for statuses in a batch."""
    body: bytes
    """A Zstandard frame (RFC 8878) for statuses in a batch."""
    headers: str = "{}"
    """JSON."""
    messages: int = 1
    """How many messages the row holds."""


def pack(statuses: Sequence[Status], dead_letters: Sequence[RequestDeadLetter] = ()) -> Sequence[OutboxBatch]:
    """Return the outbox rows of these messages, in order; statuses in canonical bytes."""
    groups = [
        statuses[start : start + MESSAGES_PER_BATCH] for start in range(0, len(statuses), MESSAGES_PER_BATCH)
    ]
    return [*map(_statuses, groups), *map(_dead_letter, dead_letters)]


def unpack(row_id: int, batch: OutboxBatch) -> Sequence[OutboxMessage]:
    """Return the messages in a row, in order.

    Their numbers grow within the row, and from row to row.
    """
    first = row_id * _INDEXES
    if batch.kind == STATUSES:
        return [
            OutboxMessage(number=first + index, request_id=request_id, body=body)
            for index, request_id, body in _contents(batch)
        ]
    return [
        OutboxMessage(
            number=first,
            request_id=batch.request_id,
            body=batch.body,
            kind=OutboxKind(batch.kind),
            headers=json.loads(batch.headers),
        )
    ]


def by_row(numbers: Iterable[int]) -> Mapping[int, Collection[int]]:
    """Return the indexes in each row that these message numbers mean."""
    indexes = defaultdict[int, set[int]](set)
    for number in numbers:
        row_id, index = divmod(number, _INDEXES)
        indexes[row_id].add(index)
    return indexes


def without(batch: OutboxBatch, indexes: Collection[int]) -> OutboxBatch | None:
    """Return the row without the messages at these indexes; None when none is left."""
    if batch.kind != STATUSES:
        return None if 0 in indexes else batch
    left = [status for status in _contents(batch) if status[0] not in indexes]
    return _packed(left) if left else None


def _statuses(group: Sequence[Status]) -> OutboxBatch:
    """Return one row of statuses; a single status stays readable in the database."""
    if len(group) == 1:
        return OutboxBatch(OutboxKind.STATUS.value, group[0].request_id, encode_status(group[0]))
    return _packed([(index, each.request_id, encode_status(each)) for index, each in enumerate(group)])


def _dead_letter(dead_letter: RequestDeadLetter) -> OutboxBatch:
    return OutboxBatch(
        OutboxKind.DEAD_LETTER.value, dead_letter.request_id, dead_letter.body, dead_letter.headers
    )


def _packed(contents: _Contents) -> OutboxBatch:
    try:
        compressor = _idle.pop()
    except IndexError:
        compressor = ZstdCompressor(compression_params=_COMPRESSION)
    frame = compressor.compress(_encode(contents))
    _idle.append(compressor)
    return OutboxBatch(STATUSES, "", frame, messages=len(contents))


def _contents(batch: OutboxBatch) -> _Contents:
    return _decode(ZstdDecompressor().decompress(batch.body, max_output_size=_LARGEST))
