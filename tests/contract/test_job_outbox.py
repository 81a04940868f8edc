"""Every store gives each message to one publisher, in order, until it is confirmed."""

from functools import partial

import pytest

from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.messages import JobStatusV1
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Reason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import (
    OutboxKind,
    OutboxMessage,
)
from tests.builders import job, job_request
from tests.stores import (
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    running,
)


@pytest.fixture
def opened(opened: OpenStore) -> OpenStore:
    return partial(opened, public_url="https://ci.example/")


async def test_every_transition_is_reported_once_in_order(store: JobStore) -> None:
    claim = await running(store, job("true", name="build"), job("true", name="ship", needs=("build",)))
    await store.finish(claim.key, FAILED)
    statuses = await outbox_statuses(store)
    assert [(status.context, status.state, status.reason) for status in statuses] == [
        ("solstice", "planning", None),
        ("solstice", "waiting", None),
        ("solstice/build", "waiting", "planned"),
        ("solstice/ship", "blocked", "planned"),
        ("solstice/build", "running", "claimed"),
        ("solstice", "running", None),
        ("solstice/build", "failed", "step_failed"),
        ("solstice/ship", "skipped", "needs_failed"),
        ("solstice", "failed", None),
    ]
    for context in {status.context for status in statuses}:
        sequences = [status.sequence for status in statuses if status.context == context]
        assert sequences == sorted(set(sequences))
    assert len({status.status_id for status in statuses}) == 9


async def test_a_status_is_canonical_and_says_all_it_can(store: JobStore) -> None:
    request = job_request(delivery_id="d-1", source_name="main", change_number=4)
    run_id = await planned(store, request=request)
    (claim,) = await claimed(store)
    await store.finish(claim.key, FAILED)
    rows = await store.outbox(100)
    for row in rows:
        assert JobStatusV1.decode(row.body).encode() == row.body
        assert row.request_id == request.request_id
    status = JobStatusV1.decode(rows[-2].body)
    assert (status.run_id, status.job_id, status.job_name) == (run_id, claim.key.job_id, "test")
    assert (status.attempt, status.exit_code) == (1, 3)
    assert (status.delivery_id, status.source_name, status.change_number, status.ref) == (
        "d-1",
        "main",
        4,
        "refs/heads/main",
    )
    assert status.target_url == f"https://ci.example/jobs/{claim.key.job_id}"
    assert status.description == "Failed: step 'step 1' ended with exit code 3"
    run = JobStatusV1.decode(rows[-1].body)
    assert run.target_url == f"https://ci.example/runs/{run_id}"


async def test_confirmed_rows_are_gone_and_the_rest_stays(store: JobStore) -> None:
    for _ in range(3):
        await admitted(store)
    first, second, third = await store.outbox(10)
    await store.published([first.number, third.number])
    await store.published([first.number])
    assert await store.outbox(10) == [second]
    await store.published([second.number])
    assert await store.outbox(10) == ()


async def test_one_publisher_at_a_time(store: JobStore, opened: OpenStore, clock: ManualClock) -> None:
    await admitted(store)
    (row,) = await store.outbox(10)
    async with opened() as other:
        assert await other.outbox(10) == ()
        clock.forward(LEASE)
        assert await other.outbox(10) == [row]
        assert await store.outbox(10) == ()
        await other.published([row.number])
        await admitted(store)
        assert len(await store.outbox(10)) == 1


async def test_messages_of_one_transaction_come_in_order_and_within_the_limit(store: JobStore) -> None:
    requests = [job_request() for _ in range(150)]
    await store.admit(requests)
    await running(store)
    seen: list[OutboxMessage] = []
    while group := await store.outbox(40):
        assert len(group) <= 40
        seen += group
        await store.published([each.number for each in group])
    assert [each.request_id for each in seen[:150]] == [request.request_id for request in requests]
    assert [JobStatusV1.decode(each.body).state for each in seen[150:]] == [
        "planning",
        "waiting",
        "waiting",
        "running",
        "running",
    ]
    numbers = [each.number for each in seen]
    assert numbers == sorted(set(numbers))


async def test_what_is_not_confirmed_stays_as_it_was_without_what_is(store: JobStore) -> None:
    await store.admit([job_request() for _ in range(9)])
    before = list(await store.outbox(100))
    confirmed = [before[2], before[5]]
    for _ in range(2):
        await store.published([each.number for each in confirmed])
        assert await store.outbox(100) == [each for each in before if each not in confirmed]
    # A limit that is smaller than what was told together.
    assert await store.outbox(3) == [before[0], before[1], before[3]]
    await store.published([each.number for each in before])
    assert await store.outbox(100) == ()


async def test_publishers_that_overlap_forget_what_each_of_them_confirmed(
    store: JobStore, opened: OpenStore, clock: ManualClock
) -> None:
    await store.admit([job_request() for _ in range(6)])
    first = list(await store.outbox(10))
    async with opened() as other:
        clock.forward(LEASE)
        assert await other.outbox(10) == first
        await store.published([each.number for each in first[:2]])
        await other.published([each.number for each in first[1:4]])
        assert await other.outbox(10) == first[4:]


async def test_a_dead_letter_keeps_its_place_among_the_statuses(store: JobStore, clock: ManualClock) -> None:
    await planned(store, job("true", name="a"))
    for _ in range(MAX_ATTEMPTS):
        clock.forward(3600.0)
        await store.rescue()
        (claim,) = await claimed(store)
        await store.published([each.number for each in await store.outbox(100)])
        await store.finish(claim.key, CHECKOUT_ERRORED)
    await store.admit([job_request(), job_request()])
    kinds = [each.kind for each in await store.outbox(100)]
    dead_letter = kinds.index(OutboxKind.DEAD_LETTER)
    assert kinds[:dead_letter] == kinds[dead_letter + 1 :] == [OutboxKind.STATUS] * 2


async def test_a_dead_letter_carries_the_signature_of_its_request(
    store: JobStore, clock: ManualClock
) -> None:
    signed, other, unsigned = [job_request() for _ in range(3)]
    await store.admit(
        [signed, other],
        [signed.encode(), other.encode()],
        [f"signature of {each}" for each in ("it", "other")],
    )
    await store.admit([unsigned])
    for _ in range(MAX_ATTEMPTS):
        clock.forward(3600.0)
        for task in await store.claim_planning(WORKER, 10):
            await store.not_planned(task, Reason.CHECKOUT_FAILED, "no route to host")
    dead_letters = [row for row in await store.outbox(100) if row.kind is OutboxKind.DEAD_LETTER]
    assert {row.request_id: row.headers.get(SIGNATURE_HEADER) for row in dead_letters} == {
        signed.request_id: "signature of it",
        other.request_id: "signature of other",
        unsigned.request_id: None,
    }
    # A request that comes again, signed again, changes nothing of what is told about the first.
    await store.admit([signed], [signed.encode()], ["another"])
    again = [row for row in await store.outbox(100) if row.kind is OutboxKind.DEAD_LETTER]
    assert again == dead_letters
