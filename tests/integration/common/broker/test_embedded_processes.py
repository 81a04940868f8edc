"""The embedded broker and its file, shared by processes that are started, stopped and killed."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.topology import STATUSES, QueueType

PEER = Path(__file__).with_name("embedded_peer.py")
WAIT_SECONDS = 60


class Peer:
    """A child process that reports its actions, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> list[str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            return (await self._process.stdout.readline()).decode().split()

    async def ended(self) -> None:
        """Wait until it has finished its work."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self._process.wait()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def rest(self) -> list[list[str]]:
        """The rest of its output after the kill."""
        assert self._process.stdout is not None
        return [line.split() for line in (await self._process.stdout.read()).decode().splitlines()]


@asynccontextmanager
async def peer(url: str, role: str, count: int = 0) -> AsyncIterator[Peer]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PEER),
        url,
        role,
        str(count),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Peer(process)
    finally:
        if process.returncode is None:
            process.stdin.close() if process.stdin else None
            async with asyncio.timeout(WAIT_SECONDS):
                await process.communicate()


def numbered(count: int) -> list[Message]:
    return [
        Message(exchange=STATUSES.exchange, routing_key=STATUSES.routing_key, body=str(n).encode(), type="t")
        for n in range(count)
    ]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'broker.db'}"


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with open_broker(url, name="here") as opened:
        await opened.declare(STATUSES.topology(QueueType.QUORUM))
        yield opened


async def take(broker: Broker, count: int) -> list[tuple[int, bool]]:
    received: list[tuple[int, bool]] = []
    async with broker.consume(STATUSES.queue, prefetch=100) as consumer, asyncio.timeout(WAIT_SECONDS):
        while len(received) < count:
            batch = await consumer.batch()
            received.extend((int(delivery.body), delivery.redelivered) for delivery in batch)
            await consumer.settle([(delivery, Ack()) for delivery in batch])
    return received


async def test_a_killed_consumer_gives_its_messages_back_to_one_that_waits(broker: Broker, url: str) -> None:
    await broker.publish(numbered(5))
    async with peer(url, "hold", 3) as holder:
        assert await holder.line() == ["held", "3"]
        assert await take(broker, 2) == [(3, False), (4, False)]
        waiting = asyncio.create_task(take(broker, 3))
        depth = await broker.depth(STATUSES.queue)
        assert depth is not None
        assert depth.ready == 0
        await holder.kill()
        assert await waiting == [(0, True), (1, True), (2, True)]


async def test_messages_of_a_killed_consumer_are_there_for_the_next_process(url: str) -> None:
    async with open_broker(url, name="first") as broker:
        await broker.declare(STATUSES.topology(QueueType.QUORUM))
        await broker.publish(numbered(3))
        async with peer(url, "hold", 3) as holder:
            await holder.line()
            await holder.kill()
    async with open_broker(url, name="second") as broker:
        assert await take(broker, 3) == [(0, True), (1, True), (2, True)]


async def test_owners_whose_lock_files_were_tidied_away_are_found_when_opening(
    url: str, tmp_path: Path
) -> None:
    async with open_broker(url, name="first") as broker:
        await broker.declare(STATUSES.topology(QueueType.QUORUM))
        await broker.publish(numbered(1))
        async with peer(url, "hold", 1) as holder:
            await holder.line()
            await holder.kill()
    for lock in (tmp_path / "broker.db.owners").glob("*"):
        lock.unlink()
    async with open_broker(url, name="second") as broker:
        assert await take(broker, 1) == [(0, True)]


async def test_a_publish_in_one_process_wakes_a_consumer_in_another(broker: Broker, url: str) -> None:
    async with peer(url, "work") as worker:
        assert await worker.line() == ["ready"]
        for number, message in enumerate(numbered(5)):
            await broker.publish([message])
            assert await worker.line() == ["got", str(number), "0"]


async def test_processes_share_a_queue_and_each_message_is_seen_once(broker: Broker, url: str) -> None:
    seen: list[int] = []
    complete = asyncio.Event()

    async def watch(worker: Peer) -> None:
        while words := await worker.line():
            if words[0] == "got":
                seen.append(int(words[1]))
                if len(seen) >= 600:
                    complete.set()

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(peer(url, "work")) for _ in range(3)]
        for worker in workers:
            assert await worker.line() == ["ready"]
        watchers = [asyncio.create_task(watch(worker)) for worker in workers]
        for start in range(0, 600, 50):
            await broker.publish(numbered(600)[start : start + 50])
        async with asyncio.timeout(WAIT_SECONDS):
            await complete.wait()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    assert sorted(seen) == list(range(600))


async def test_workers_killed_at_any_moment_lose_nothing(broker: Broker, url: str) -> None:
    await broker.publish(numbered(300))
    seen: set[int] = set()
    for lines in (1, 7, 40):
        async with peer(url, "work") as worker:
            assert await worker.line() == ["ready"]
            for _ in range(lines):
                seen.add(int((await worker.line())[1]))
            await worker.kill()
            seen.update(int(words[1]) for words in await worker.rest() if words[:1] == ["got"])
    async with broker.consume(STATUSES.queue, prefetch=100) as consumer, asyncio.timeout(WAIT_SECONDS):
        while len(seen) < 300:
            batch = await consumer.batch()
            seen.update(int(delivery.body) for delivery in batch)
            await consumer.settle([(delivery, Ack()) for delivery in batch])
    assert seen == set(range(300))


async def test_confirmed_messages_of_a_killed_publisher_are_stored(broker: Broker, url: str) -> None:
    async with peer(url, "publish", 100_000) as publisher:
        reported = [await publisher.line() for _ in range(200)]
        await publisher.kill()
        reported.extend(words for words in await publisher.rest() if len(words) == 2)
    confirmed = [int(words[1]) for words in reported if words[0] == "confirmed"]
    depth = await broker.depth(STATUSES.queue)
    assert depth is not None
    assert depth.ready in {len(confirmed), len(confirmed) + 1}
    assert [number for number, _ in await take(broker, depth.ready)][: len(confirmed)] == confirmed


async def test_many_processes_may_create_the_file_at_once(url: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer(url, "declare")) for _ in range(6)]
        for one in peers:
            assert await one.line() == ["declared"]
        for one in peers:
            # A process that is stopped while it leaves may leave its name behind, as after a kill.
            await one.ended()
    with closing(sqlite3.connect(tmp_path / "broker.db")) as connection:
        assert connection.execute("SELECT version FROM schema_migrations").fetchall() == [(1,), (2,), (3,)]
        assert connection.execute("SELECT count(*) FROM owners").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM queues").fetchone() == (2,)


async def test_leaving_tidies_up_beside_the_file(url: str, tmp_path: Path) -> None:
    async with open_broker(url, name="tidy") as broker:
        await broker.declare(STATUSES.topology(QueueType.QUORUM))
        async with broker.consume(STATUSES.queue, prefetch=1):
            assert len(list((tmp_path / "broker.db.notify").iterdir())) == 1
    for directory in ("broker.db.notify", "broker.db.owners"):
        assert list((tmp_path / directory).iterdir()) == []
