"""Tests a growing log with several readers over a real server.

The server is a process of its own. The readers must get every chunk, and the server's memory must stay flat.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.views import LogChunk
from tests.builders import job
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.stores import SUCCEEDED, claimed, planned

CHUNK_BYTES: Final = 16 * 1024
"""Bytes that the orchestrator writes at once."""
AT_ONCE: Final = 32
READERS: Final = 3
LABEL: Final = "nowhere"
"""A label that no worker of the server has: the test plays the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderResult:
    """What one reader received."""

    sequences: int
    """How many chunks it received."""
    missing: list[tuple[int, int]]
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingResult:
    """The result of one test."""

    written: int
    """How many chunks were written."""
    gaps: list[tuple[int, int]]
    readers: list[ReaderResult]
    before_kib: int
    """Resident memory of the server after the readers connected, before any write."""
    peak_kib: int


async def write_and_read(
    directory: Path, size: int, *, database_url: str | None = None, seed: int = 7
) -> ReadingResult:
    """Write `size` bytes in chunks while three readers follow.

    Some chunks never arrive, and one reader hangs up now and then.
    """
    shared_files = SharedFiles(directory=directory)
    url = database_url or shared_files.database_url
    async with open_store(url, lease_seconds=600.0) as store:
        # Before a server runs, which would plan the run itself; the lease outlives the test.
        await planned(store, job("true", runs_on=LABEL))
        (claim,) = await claimed(store, free={LABEL: 1})
        assert await store.append_log(claim.key, [_chunk(1)])
        with orchestrator(shared_files, DATABASE_URL=url) as server:
            return await _write_and_read(store, claim.key, server, size, seed)


async def _write_and_read(
    store: JobStore, key: AttemptKey, server: OrchestratorProcess, size: int, seed: int
) -> ReadingResult:
    pid, rng = server.process.pid, random.Random(seed)
    path = f"/api/v1/jobs/{key.job_id}/log/events"
    async with _clients(server) as clients, asyncio.TaskGroup() as tasks:
        started = [asyncio.Event() for _ in clients]
        readers = [
            tasks.create_task(_read(client, path, random.Random(number) if number else None, begun))
            for number, (client, begun) in enumerate(zip(clients, started, strict=True))
        ]
        for begun in started:
            await begun.wait()
        before = resident_kib(pid)
        written, gaps, peak = await _write(store, key, size, rng, pid)
        assert await store.finish(key, SUCCEEDED)
        read = [await reader for reader in readers]
        return ReadingResult(
            written=written,
            gaps=gaps,
            readers=read,
            before_kib=before,
            peak_kib=max(peak, resident_kib(pid)),
        )


def resident_kib(pid: int) -> int:
    """The resident memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no memory")


async def _write(
    store: JobStore, key: AttemptKey, size: int, rng: random.Random, pid: int
) -> tuple[int, list[tuple[int, int]], int]:
    last, written, peak, gaps = 1, 1, 0, list[tuple[int, int]]()
    while written * CHUNK_BYTES < size:
        if rng.random() < 0.1:
            lost = rng.randint(1, 3)
            gaps.append((last + 1, last + lost))
            last += lost
        assert await store.append_log(key, [_chunk(last + index + 1) for index in range(AT_ONCE)])
        last, written = last + AT_ONCE, written + AT_ONCE
        peak = max(peak, resident_kib(pid))
    return written, gaps, peak


def _chunk(sequence: int) -> LogChunk:
    line = f"{sequence:09d} {'x' * 53}\n".encode()
    return LogChunk(sequence=sequence, at=1.0, data=line * (CHUNK_BYTES // len(line)))


async def _read(
    client: httpx2.AsyncClient, path: str, hangs_up: random.Random | None, begun: asyncio.Event
) -> ReaderResult:
    """Read everything to the end.

    With `hangs_up` over several connections, each of which continues where the last one stopped.
    """
    known, sequences, missing, connections, last_id = 0, 0, list[tuple[int, int]](), 0, ""
    while True:
        connections += 1
        gap: tuple[int, int] | None = None
        left = hangs_up.randint(50, 400) if hangs_up else -1
        async with client.sse(path, headers={"Last-Event-ID": last_id} if last_id else {}) as source:
            assert source.response.status_code == 200
            async for event in source:
                if not event.data:
                    continue
                data = json.loads(event.data)
                if event.event == "end":
                    return ReaderResult(sequences=sequences, missing=missing, connections=connections)
                if event.event == "gap":
                    gap = (data["first"], data["last"])
                    assert gap[0] == known + 1
                    continue
                assert event.event == "chunk"
                # Every chunk follows the one before, or a reported gap.
                assert data["sequence"] == (gap[1] if gap else known) + 1
                assert data["text"].startswith(f"{data['sequence']:09d} ")
                assert data["text"].count("\n") == CHUNK_BYTES // 64
                if gap:
                    missing.append(gap)
                known, last_id, gap, sequences = data["sequence"], event.id, None, sequences + 1
                begun.set()
                left -= 1
                if not left:
                    break


@asynccontextmanager
async def _clients(server: OrchestratorProcess) -> AsyncIterator[list[httpx2.AsyncClient]]:
    clients = [httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) for _ in range(READERS)]
    try:
        yield clients
    finally:
        for client in clients:
            await client.aclose()
