"""What one transaction has to tell, in few rows of the outbox: its statuses lie there in parcels. Pure.

The statuses of one transaction are nearly the same text, so that many of them take little more room than the ids in
them; and a row costs a database its price whatever is in it. What is left of a parcel keeps its numbers: two publishers
may overlap, and what one of them confirms must not be taken for something else.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import msgpack
from zstandard import ZstdCompressionParameters, ZstdCompressor, ZstdDecompressor

from solstice_orchestrator.domain.statuses import Status, encode_status
from solstice_orchestrator.store.protocol import OutboxKind, Tiding
from solstice_orchestrator.store.records.changes import Letter

IN_A_PARCEL: Final = 64
"""About six kilobytes of statuses: what fits on a page of PostgreSQL's, together with its row."""
STATUSES: Final = "statuses"
"""The kind of a row that is a parcel; that of all others is their message's."""

_PLACES: Final = 1 << 8
_COMPRESSION: Final = ZstdCompressionParameters.from_level(1, min_match=7)
_idle: Final[list[ZstdCompressor]] = []
"""Compressors that nobody uses at this moment, for each is used by one thread at a time; to make one takes half as long
as to use it. There are as many as ever compressed at once."""
_LARGEST: Final = 1 << 28
"""Far above what statuses may have; bounds what a damaged row could make of itself."""

_Contents = list[tuple[int, str, bytes]]
"""Place, request id and body of each status."""
_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(_Contents).decode


class Parcel(NamedTuple):
    """A row of the outbox, without its id."""

    kind: str
    request_id: str
    """Empty for statuses in a parcel."""
    body: bytes
    """A Zstandard frame (RFC 8878) for statuses in a parcel."""
    headers: str = "{}"
    """JSON."""
    messages: int = 1
    """How many are in it."""


def pack(statuses: Sequence[Status], letters: Sequence[Letter] = ()) -> Sequence[Parcel]:
    """The rows that hold these, in their order; statuses in their canonical bytes."""
    groups = [statuses[start : start + IN_A_PARCEL] for start in range(0, len(statuses), IN_A_PARCEL)]
    return [*map(_statuses, groups), *map(_letter, letters)]


def unpack(row_id: int, parcel: Parcel) -> Sequence[Tiding]:
    """The messages in a row, in their order; their numbers grow with it, and from row to row."""
    first = row_id * _PLACES
    if parcel.kind == STATUSES:
        return [
            Tiding(number=first + place, request_id=request_id, body=body)
            for place, request_id, body in _contents(parcel)
        ]
    return [
        Tiding(
            number=first,
            request_id=parcel.request_id,
            body=parcel.body,
            kind=OutboxKind(parcel.kind),
            headers=json.loads(parcel.headers),
        )
    ]


def by_row(numbers: Iterable[int]) -> Mapping[int, Collection[int]]:
    """Which places of which rows these numbers are."""
    places = defaultdict[int, set[int]](set)
    for number in numbers:
        row_id, place = divmod(number, _PLACES)
        places[row_id].add(place)
    return places


def without(parcel: Parcel, places: Collection[int]) -> Parcel | None:
    """What a row still has to tell when these are told; None when that is nothing."""
    if parcel.kind != STATUSES:
        return None if 0 in places else parcel
    left = [status for status in _contents(parcel) if status[0] not in places]
    return _packed(left) if left else None


def _statuses(group: Sequence[Status]) -> Parcel:
    """One status alone stays readable for whoever looks into the database."""
    if len(group) == 1:
        return Parcel(OutboxKind.STATUS.value, group[0].request_id, encode_status(group[0]))
    return _packed([(place, each.request_id, encode_status(each)) for place, each in enumerate(group)])


def _letter(letter: Letter) -> Parcel:
    return Parcel(OutboxKind.DEAD_LETTER.value, letter.request_id, letter.body, letter.headers)


def _packed(contents: _Contents) -> Parcel:
    try:
        compressor = _idle.pop()
    except IndexError:
        compressor = ZstdCompressor(compression_params=_COMPRESSION)
    frame = compressor.compress(_encode(contents))
    _idle.append(compressor)
    return Parcel(STATUSES, "", frame, messages=len(contents))


def _contents(parcel: Parcel) -> _Contents:
    return _decode(ZstdDecompressor().decompress(parcel.body, max_output_size=_LARGEST))
