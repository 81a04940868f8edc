"""Rows of the outbox: whatever is packed comes out again, in its order, without what was told."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.statuses import encode_status, status_about
from solstice_orchestrator.store.changes import Message
from solstice_orchestrator.store.parcels import IN_A_PARCEL, Parcel, by_row, pack, unpack, without
from solstice_orchestrator.store.protocol import OutboxKind, Tiding
from tests.builders import job_request

KINDS = st.lists(
    st.sampled_from([OutboxKind.STATUS] * 3 + [OutboxKind.DEAD_LETTER]), max_size=12
) | st.builds(lambda many: [OutboxKind.STATUS] * many, st.integers(IN_A_PARCEL - 1, 2 * IN_A_PARCEL + 1))
LETTERS_HEADERS = '{"x-solstice-reason": "agent_lost"}'


def message(number: int, kind: OutboxKind) -> Message:
    """One of a kind, with a body that is no text."""
    headers = LETTERS_HEADERS if kind is OutboxKind.DEAD_LETTER else "{}"
    return Message(kind, f"r-{number % 5}", b"\xff\n\0%d" % number, headers)


MESSAGES = KINDS.map(lambda kinds: [message(number, kind) for number, kind in enumerate(kinds)])


def tidings(parcels: Sequence[Parcel], first_row: int = 1) -> list[Tiding]:
    return [each for row_id, parcel in enumerate(parcels, first_row) for each in unpack(row_id, parcel)]


@given(MESSAGES, st.integers(1, 2**53))
def test_what_is_packed_comes_out_again_in_order(messages: list[Message], first_row: int) -> None:
    parcels = pack(messages)
    found = tidings(parcels, first_row)
    assert [(each.kind, each.request_id, each.body) for each in found] == [
        (each.kind, each.request_id, each.body) for each in messages
    ]
    assert [bool(each.headers) for each in found] == [
        each.kind is OutboxKind.DEAD_LETTER for each in messages
    ]
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers))
    assert [parcel.messages for parcel in parcels] == [len(unpack(1, parcel)) for parcel in parcels]
    assert all(parcel.messages <= IN_A_PARCEL for parcel in parcels)


@given(MESSAGES, st.data())
def test_only_what_was_told_goes_in_whatever_order_and_however_often(
    messages: list[Message], data: st.DataObject
) -> None:
    rows = dict(enumerate(pack(messages), 1))
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
    (parcel,) = pack([Message(OutboxKind.STATUS, "r-1", b"{}")])
    assert parcel == Parcel("status", "r-1", b"{}")


def test_a_full_parcel_fits_on_a_page() -> None:
    requests = [job_request() for _ in range(IN_A_PARCEL)]
    messages = [
        Message(OutboxKind.STATUS, each.request_id, encode_status(status_about(each))) for each in requests
    ]
    (parcel,) = pack(messages)
    assert len(parcel.body) < 8000
    assert len(parcel.body) * 3 < sum(len(message.body) for message in messages)


def test_threads_that_pack_at_once_do_not_mix_their_parcels() -> None:
    def packed(thread: int) -> bool:
        messages = [
            Message(OutboxKind.STATUS, f"r-{thread}", bytes([thread]) * 2000) for _ in range(IN_A_PARCEL)
        ]
        bodies = [[each.body for each in tidings(pack(messages))] for _ in range(50)]
        return all(found == [each.body for each in messages] for found in bodies)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(packed, range(8)))
