"""Buffer a job's output shortly, and send it to the store in numbered chunks."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.store.protocol import AttemptKey, JobStore, LastChunks
from solstice_orchestrator.store.views import ChunkKind, LogChunk

T = TypeVar("T")

FLUSH_SECONDS: Final = 0.25
FLUSH_BYTES: Final = 16 * 1024
CHUNK_BYTES: Final = 64 * 1024
PENDING_BYTES: Final = 1024 * 1024
"""With more unsent output than this, the executor waits, and so does the job."""
LAST_BYTES: Final = 64 * 1024
"""At most so much is left for the write that records the end of the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRetryLimit:
    """How long to ask an unavailable store again.

    For an attempt this is the length of its lease, after which it may belong to another worker.
    """

    seconds: float = 60.0
    monotonic: Callable[[], float] = time.monotonic


DEFAULT_RETRY_LIMIT: Final = StoreRetryLimit()


async def retry_while_unavailable(
    call: Callable[[], Awaitable[T]], rng: random.Random, retry_limit: StoreRetryLimit = DEFAULT_RETRY_LIMIT
) -> T:
    """Return the store's answer; retry while it is unavailable, up to the limit."""
    begun = tried_at = retry_limit.monotonic()
    pause = 0.05
    while True:
        try:
            return await call()
        except StoreUnavailable:
            # A process that was frozen during a call retries once: that call says nothing about the store
            # now.
            if tried_at - begun > retry_limit.seconds:
                raise
        await asyncio.sleep(pause * rng.uniform(0.5, 1.0))
        pause, tried_at = min(pause * 2, 5.0), retry_limit.monotonic()


class LogBuffer:
    """A bounded buffer of output, sent to the store in order."""

    def __init__(
        self,
        key: AttemptKey,
        store: JobStore,
        clock: Callable[[], float],
        rng: random.Random,
        retry_limit: StoreRetryLimit,
        *,
        service: str = "",
    ) -> None:
        """Without a `service` of the job, this is its own log."""
        self._service = service
        self._key, self._store, self._clock, self._rng = key, store, clock, rng
        self._retry_limit = retry_limit
        self.lost = ""
        """Why the attempt is lost; empty while it is not."""
        self._pending = bytearray()
        self._unsent: deque[LogChunk] = deque()
        self._sequence = 0
        self._closed = self._line_open = False
        self._filled = asyncio.Event()
        self._full = asyncio.Event()
        self._drained = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Accept output; return late when the store is slower than the job."""
        if isinstance(data, LogMark):
            self._mark(data)
            while self._unsent_bytes > PENDING_BYTES:
                self._drained.clear()
                await self._drained.wait()
            return
        if not data:
            return
        self._pending += data
        self._line_open = not data.endswith(b"\n")
        self._filled.set()
        if len(self._pending) >= FLUSH_BYTES:
            self._full.set()
        while len(self._pending) > PENDING_BYTES:
            self._drained.clear()
            await self._drained.wait()

    def remark(self, text: str) -> None:
        """Add a mark with this text."""
        self._mark(LogMark.of(f"! {text}"))

    def _mark(self, line: LogMark) -> None:
        if self._line_open:
            self._pending += b"\n"
            self._line_open = False
        self._cut_output()
        self._add(bytes(line), ChunkKind.MARK)
        self._filled.set()

    def close(self) -> None:
        """End the buffer: no more will be written.

        `send` may leave a little, which `last_chunks` returns: it is stored together with the end of the attempt.
        """
        self._closed = True
        self._filled.set()
        self._full.set()

    async def send(self, *, lost: Callable[[], object]) -> None:
        """Send output until `close`, or call `lost` when the attempt is lost."""
        while not self.lost:
            await self._filled.wait()
            if not self._closed:
                try:
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._full.wait()
                except TimeoutError:
                    pass
            self._cut()
            if self._closed and self._unsent_bytes <= LAST_BYTES:
                return
            try:
                if not await retry_while_unavailable(self._append, self._rng, self._retry_limit):
                    self.lost = "its lease was lost"
            except StoreUnavailable as error:
                self.lost = str(error)
        lost()

    async def send_rest(self) -> bool:
        """Try once to send the rest, unless that is a little.

        False when the attempt is lost.
        """
        self._cut()
        return not self.lost and (self._unsent_bytes <= LAST_BYTES or await self._append())

    def last_chunks(self) -> Sequence[LastChunks]:
        """Return what was not sent."""
        return [LastChunks(chunks=tuple(self._unsent), service=self._service)] if self._unsent else ()

    @property
    def _unsent_bytes(self) -> int:
        return sum(len(chunk.data) for chunk in self._unsent)

    def _cut(self) -> None:
        """Cut pending output into chunks to send now."""
        self._cut_output()
        self._drained.set()
        if not self._closed:
            self._filled.clear()
            self._full.clear()

    def _cut_output(self) -> None:
        for start in range(0, len(self._pending), CHUNK_BYTES):
            self._add(bytes(self._pending[start : start + CHUNK_BYTES]), ChunkKind.OUTPUT)
        self._pending.clear()

    def _add(self, data: bytes, kind: ChunkKind) -> None:
        self._sequence += 1
        self._unsent.append(LogChunk(sequence=self._sequence, at=self._clock(), data=data, kind=kind))

    async def _append(self) -> bool:
        chunks = tuple(self._unsent)
        stored = await self._store.append_log(self._key, chunks, self._service)
        if stored:
            # Marks may have come meanwhile.
            for _ in chunks:
                self._unsent.popleft()
            self._drained.set()
        return stored
