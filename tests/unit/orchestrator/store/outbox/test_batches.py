"""Packed rows of the outbox unpack in their order, without the confirmed ones."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace
from zstandard import ZstdCompressor

from solstice_orchestrator.domain.statuses import Status, encode_status, status_about
from solstice_orchestrator.store.outbox.batches import (
    MESSAGES_PER_BATCH,
    OutboxBatch,
    by_row,
    pack,
    unpack,
    without,
)
from solstice_orchestrator.store.protocol import OutboxKind, OutboxMessage
from solstice_orchestrator.store.records.changes import RequestDeadLetter
from tests.builders import job_request

DEAD_LETTER_HEADERS = '{"x-solstice-reason": "agent_lost"}'
ABOUT = status_about(job_request())


def status(number: int, words: str = "") -> Status:
    return replace(ABOUT, request_id=f"r-{number % 5}", sequence=number, description=words)


STATUSES = st.lists(st.builds(status, st.integers(0, 2**31), st.text(max_size=20)), max_size=12) | st.builds(
    lambda many: [status(number) for number in range(many)],
    st.integers(MESSAGES_PER_BATCH - 1, 2 * MESSAGES_PER_BATCH + 1),
)
# With bodies that are no text.
DEAD_LETTERS = st.lists(
    st.builds(RequestDeadLetter, st.text("r-0123"), st.binary(), st.just(DEAD_LETTER_HEADERS)), max_size=3
)


def outbox_messages(batches: Sequence[OutboxBatch], first_row: int = 1) -> list[OutboxMessage]:
    return [each for row_id, batch in enumerate(batches, first_row) for each in unpack(row_id, batch)]


@given(STATUSES, DEAD_LETTERS, st.integers(1, 2**53))
def test_what_is_packed_comes_out_again_in_order(
    statuses: list[Status], dead_letters: list[RequestDeadLetter], first_row: int
) -> None:
    batches = pack(statuses, dead_letters)
    found = outbox_messages(batches, first_row)
    assert [(each.kind, each.request_id, each.body) for each in found] == [
        *((OutboxKind.STATUS, each.request_id, encode_status(each)) for each in statuses),
        *((OutboxKind.DEAD_LETTER, each.request_id, each.body) for each in dead_letters),
    ]
    assert [bool(each.headers) for each in found] == [False] * len(statuses) + [True] * len(dead_letters)
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers))
    assert [batch.messages for batch in batches] == [len(unpack(1, batch)) for batch in batches]
    assert all(batch.messages <= MESSAGES_PER_BATCH for batch in batches)


@given(STATUSES, DEAD_LETTERS, st.data())
def test_confirmed_messages_are_removed_in_any_order_and_number(
    statuses: list[Status], dead_letters: list[RequestDeadLetter], data: st.DataObject
) -> None:
    rows = dict(enumerate(pack(statuses, dead_letters), 1))
    everything = [each for row_id, batch in rows.items() for each in unpack(row_id, batch)]
    reported: set[int] = set()
    numbers = st.sampled_from([each.number for each in everything]) if everything else st.nothing()
    # Each is a confirmation by a publisher, which may overlap with another's.
    for confirmed in data.draw(st.lists(st.sets(numbers), max_size=4)):
        reported |= confirmed
        for row_id, places in by_row(confirmed).items():
            if row_id in rows:
                left = without(rows.pop(row_id), places)
                if left is not None:
                    rows[row_id] = left
    remaining = [each for each in everything if each.number not in reported]
    assert [each for row_id in sorted(rows) for each in unpack(row_id, rows[row_id])] == remaining
    assert sum(batch.messages for batch in rows.values()) == len(remaining)


def test_a_status_alone_can_be_read_in_the_database() -> None:
    (batch,) = pack([status(1)])
    assert batch == OutboxBatch("status", "r-1", encode_status(status(1)))


def test_a_row_that_another_version_left_is_read() -> None:
    contents = msgpack.encode([(0, "r-1", b"{}"), (2, "r-2", b"[]")])
    row = OutboxBatch("statuses", "", ZstdCompressor().compress(contents), messages=2)
    found = [(each.kind, each.number % 256, each.request_id, each.body) for each in unpack(7, row)]
    assert found == [(OutboxKind.STATUS, 0, "r-1", b"{}"), (OutboxKind.STATUS, 2, "r-2", b"[]")]
    assert pack([status(1), status(2)])[0].kind == row.kind


def test_a_row_that_is_not_meant_stays() -> None:
    (row,) = pack([], [RequestDeadLetter("r", b"{}", DEAD_LETTER_HEADERS)])
    assert without(row, {1}) == row
    assert without(row, {0}) is None


def test_a_full_parcel_fits_on_a_page() -> None:
    statuses = [status_about(job_request()) for _ in range(MESSAGES_PER_BATCH)]
    (batch,) = pack(statuses)
    assert len(batch.body) < 8000
    assert len(batch.body) * 3 < sum(len(encode_status(each)) for each in statuses)


def test_threads_that_pack_at_once_do_not_mix_their_parcels() -> None:
    def packed(thread: int) -> bool:
        statuses = [status(thread, str(thread) * 2000) for _ in range(MESSAGES_PER_BATCH)]
        bodies = [[each.body for each in outbox_messages(pack(statuses))] for _ in range(50)]
        return all(found == [encode_status(each) for each in statuses] for found in bodies)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(packed, range(8)))
