"""Rows of the outbox: whatever is packed comes out again, in its order, without what was told."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
from solstice_orchestrator.store.records.changes import DeadLetter
from tests.builders import job_request

LETTERS_HEADERS = '{"x-solstice-reason": "agent_lost"}'
ABOUT = status_about(job_request())


def status(number: int, words: str = "") -> Status:
    return replace(ABOUT, request_id=f"r-{number % 5}", sequence=number, description=words)


STATUSES = st.lists(st.builds(status, st.integers(0, 2**31), st.text(max_size=20)), max_size=12) | st.builds(
    lambda many: [status(number) for number in range(many)],
    st.integers(MESSAGES_PER_BATCH - 1, 2 * MESSAGES_PER_BATCH + 1),
)
# With bodies that are no text.
LETTERS = st.lists(
    st.builds(DeadLetter, st.text("r-0123"), st.binary(), st.just(LETTERS_HEADERS)), max_size=3
)


def outbox_messages(parcels: Sequence[OutboxBatch], first_row: int = 1) -> list[OutboxMessage]:
    return [each for row_id, parcel in enumerate(parcels, first_row) for each in unpack(row_id, parcel)]


@given(STATUSES, LETTERS, st.integers(1, 2**53))
def test_what_is_packed_comes_out_again_in_order(
    statuses: list[Status], letters: list[DeadLetter], first_row: int
) -> None:
    parcels = pack(statuses, letters)
    found = outbox_messages(parcels, first_row)
    assert [(each.kind, each.request_id, each.body) for each in found] == [
        *((OutboxKind.STATUS, each.request_id, encode_status(each)) for each in statuses),
        *((OutboxKind.DEAD_LETTER, each.request_id, each.body) for each in letters),
    ]
    assert [bool(each.headers) for each in found] == [False] * len(statuses) + [True] * len(letters)
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers))
    assert [parcel.messages for parcel in parcels] == [len(unpack(1, parcel)) for parcel in parcels]
    assert all(parcel.messages <= MESSAGES_PER_BATCH for parcel in parcels)


@given(STATUSES, LETTERS, st.data())
def test_only_what_was_told_goes_in_whatever_order_and_however_often(
    statuses: list[Status], letters: list[DeadLetter], data: st.DataObject
) -> None:
    rows = dict(enumerate(pack(statuses, letters), 1))
    everything = [each for row_id, parcel in rows.items() for each in unpack(row_id, parcel)]
    told: set[int] = set()
    numbers = st.sampled_from([each.number for each in everything]) if everything else st.nothing()
    # Each a publisher's word, which may have seen what another has told since.
    for said in data.draw(st.lists(st.sets(numbers), max_size=4)):
        told |= said
        for row_id, places in by_row(said).items():
            if row_id in rows:
                left = without(rows.pop(row_id), places)
                if left is not None:
                    rows[row_id] = left
    remaining = [each for each in everything if each.number not in told]
    assert [each for row_id in sorted(rows) for each in unpack(row_id, rows[row_id])] == remaining
    assert sum(parcel.messages for parcel in rows.values()) == len(remaining)


def test_a_status_alone_can_be_read_in_the_database() -> None:
    (parcel,) = pack([status(1)])
    assert parcel == OutboxBatch("status", "r-1", encode_status(status(1)))


def test_a_full_parcel_fits_on_a_page() -> None:
    statuses = [status_about(job_request()) for _ in range(MESSAGES_PER_BATCH)]
    (parcel,) = pack(statuses)
    assert len(parcel.body) < 8000
    assert len(parcel.body) * 3 < sum(len(encode_status(each)) for each in statuses)


def test_threads_that_pack_at_once_do_not_mix_their_parcels() -> None:
    def packed(thread: int) -> bool:
        statuses = [status(thread, str(thread) * 2000) for _ in range(MESSAGES_PER_BATCH)]
        bodies = [[each.body for each in outbox_messages(pack(statuses))] for _ in range(50)]
        return all(found == [encode_status(each) for each in statuses] for found in bodies)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(packed, range(8)))
