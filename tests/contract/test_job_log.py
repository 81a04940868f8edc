"""Every store keeps the log of each attempt, in order and each chunk once."""

from dataclasses import replace

from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import AttemptKey, LastChunks
from solstice_orchestrator.store.views import ChunkKind, LogState
from tests.builders import job
from tests.stores import (
    FAILED,
    LEASE,
    RELEASED,
    SUCCEEDED,
    ManualClock,
    chunk,
    claimed,
    planned,
    running,
)


async def test_chunks_are_kept_once_and_read_in_order(store: JobStore) -> None:
    key = (await running(store)).key
    assert await store.append_log(key, [chunk(1, b"a"), chunk(2, b"b")])
    assert await store.append_log(key, [chunk(2, b"again"), chunk(3, b"\xff\x00")])
    page = await store.log(key.job_id)
    assert page is not None
    assert [(each.sequence, each.data) for each in page.chunks] == [
        (1, b"a"),
        (2, b"b"),
        (3, b"\xff\x00"),
    ]
    assert page.state is LogState.OPEN


async def test_marks_stay_marks(store: JobStore) -> None:
    key = (await running(store)).key
    mark = replace(chunk(2, b"$ test\n"), kind=ChunkKind.MARK)
    assert await store.append_log(key, [chunk(1, b"$ test\n"), mark])
    page = await store.log(key.job_id)
    assert page is not None
    assert [each.kind for each in page.chunks] == [ChunkKind.OUTPUT, ChunkKind.MARK]


async def test_each_service_of_a_job_has_a_log_of_its_own(store: JobStore) -> None:
    key = (await running(store)).key
    mark = replace(chunk(2, b"! cut\n"), kind=ChunkKind.MARK)
    assert await store.append_log(key, [chunk(1, b"of the job")])
    assert await store.append_log(key, [chunk(1, b"of db"), mark], "db")
    assert await store.append_log(key, [chunk(1, b"again"), chunk(3, b"more")], "db")
    assert await store.append_log(key, [chunk(1, b"of cache")], "cache")
    assert await store.logged_services(key.job_id, attempt=1) == ["cache", "db"]
    assert await store.logged_services(key.job_id, attempt=2) == []
    found = {}
    for service in ("", "db", "cache", "other"):
        page = await store.log(key.job_id, service=service)
        assert page is not None
        found[service] = [(each.data, each.kind) for each in page.chunks]
    assert found == {
        "": [(b"of the job", ChunkKind.OUTPUT)],
        "db": [(b"of db", ChunkKind.OUTPUT), (b"! cut\n", ChunkKind.MARK), (b"more", ChunkKind.OUTPUT)],
        "cache": [(b"of cache", ChunkKind.OUTPUT)],
        "other": [],
    }
    await store.finish(key, SUCCEEDED)
    assert not await store.append_log(key, [chunk(4)], "db")
    last = await store.log(key.job_id, after=2, service="db")
    assert last is not None
    assert ([each.sequence for each in last.chunks], last.state) == ([3], LogState.CLOSED)


async def test_closed_is_reported_with_the_last_chunk_and_not_before(store: JobStore) -> None:
    key = (await running(store)).key
    await store.append_log(key, [chunk(number) for number in range(1, 5)])
    await store.finish(key, SUCCEEDED)
    first = await store.log(key.job_id, limit=3)
    rest = await store.log(key.job_id, after=3, limit=3)
    beyond = await store.log(key.job_id, after=4)
    assert first is not None
    assert rest is not None
    assert beyond is not None
    assert (len(first.chunks), first.state) == (3, LogState.OPEN)
    assert ([each.sequence for each in rest.chunks], rest.state) == ([4], LogState.CLOSED)
    assert (list(beyond.chunks), beyond.state) == ([], LogState.CLOSED)


async def test_the_end_of_an_attempt_brings_the_ends_of_its_logs(store: JobStore) -> None:
    key = (await running(store)).key
    assert await store.append_log(key, [chunk(1, b"a\n")])
    logs = [
        LastChunks(chunks=[chunk(1, b"again"), replace(chunk(2, b"$ b\n"), kind=ChunkKind.MARK)]),
        LastChunks(chunks=[chunk(3, b"\xff\x00"), chunk(4, b"c")]),
        LastChunks(chunks=[chunk(1, b"of db")], service="db"),
    ]
    assert await store.finish(key, SUCCEEDED, logs)
    # A holder whose store did not answer in time asks again, with the same or, having given up, with something else.
    assert await store.finish(key, SUCCEEDED, [LastChunks(chunks=[chunk(5, b"late")])])
    assert not await store.finish(key, FAILED, [LastChunks(chunks=[chunk(5, b"late")])])
    assert await logged(store, key) == (
        [(1, b"a\n"), (2, b"$ b\n"), (3, b"\xff\x00"), (4, b"c")],
        [ChunkKind.OUTPUT, ChunkKind.MARK, ChunkKind.OUTPUT, ChunkKind.OUTPUT],
        LogState.CLOSED,
    )
    assert await logged(store, key, service="db") == ([(1, b"of db")], [ChunkKind.OUTPUT], LogState.CLOSED)


async def test_ends_of_one_moment_keep_their_logs_apart(store: JobStore) -> None:
    """Also of runs of one job, which PostgreSQL ends without reading them."""
    await planned(store, *[job("true", name=f"of-many-{number}") for number in range(3)])
    for _ in range(3):
        await planned(store)
    claims = await claimed(store, free={"linux": 9}, limit=9)
    assert len(claims) == 6
    ends = [
        store.finish(
            claim.key,
            FAILED if number % 2 else SUCCEEDED,
            [LastChunks(chunks=[chunk(1, claim.key.job_id.encode()), chunk(2, b"x\ny")][: 1 + number % 2])],
        )
        for number, claim in enumerate(claims)
    ]
    assert all([await end for end in ends])
    for number, claim in enumerate(claims):
        lines, _, state = await logged(store, claim.key)
        assert lines == [(1, claim.key.job_id.encode()), (2, b"x\ny")][: 1 + number % 2]
        assert state is LogState.CLOSED


async def test_a_late_holder_adds_nothing_to_any_log(store: JobStore, clock: ManualClock) -> None:
    late = (await running(store)).key
    clock.forward(2 * LEASE)
    assert await store.rescue() == [late]
    clock.forward(1000)
    (claim,) = await claimed(store)
    assert not await store.finish(late, SUCCEEDED, [LastChunks(chunks=[chunk(1, b"late")])])
    for number in (1, 2):
        page = await store.log(late.job_id, attempt=number)
        assert page is not None
        assert list(page.chunks) == []
    assert await store.finish(claim.key, SUCCEEDED, [LastChunks(chunks=[chunk(1, b"in time")])])
    assert (await logged(store, claim.key))[0] == [(1, b"in time")]


async def logged(
    store: JobStore, key: AttemptKey, service: str = ""
) -> tuple[list[tuple[int, bytes]], list[ChunkKind], LogState]:
    """What readers find in the log of an attempt, and whether it is whole."""
    page = await store.log(key.job_id, attempt=key.number, service=service)
    assert page is not None
    chunks = [(each.sequence, each.data) for each in page.chunks]
    return chunks, [each.kind for each in page.chunks], page.state


async def test_every_attempt_has_its_own(store: JobStore) -> None:
    first = (await running(store)).key
    await store.append_log(first, [chunk(1, b"one")])
    await store.finish(first, RELEASED)
    ((second),) = await claimed(store)
    await store.append_log(second.key, [chunk(1, b"two")])
    old, new = await store.log(first.job_id, attempt=1), await store.log(first.job_id)
    assert old is not None
    assert new is not None
    assert (old.chunks[0].data, old.state) == (b"one", LogState.CLOSED)
    assert (new.attempt, new.chunks[0].data, new.state) == (2, b"two", LogState.OPEN)


async def test_a_job_that_never_ran_has_an_empty_one(store: JobStore) -> None:
    run_id = await planned(store)
    (view,) = await store.jobs(run_id=run_id, limit=1)
    before = await store.log(view.job_id)
    await store.cancel_job(view.job_id)
    after = await store.log(view.job_id)
    assert before is not None
    assert after is not None
    assert (before.state, after.state) == (LogState.OPEN, LogState.CLOSED)
    assert await store.log("no such job") is None
