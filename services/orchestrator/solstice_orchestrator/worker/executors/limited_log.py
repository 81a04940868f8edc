"""Limit the length of a job's log: keep its beginning and its end."""

from typing import Final

from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.worker.executors.protocol import LogWriter

PIECE_BYTES: Final = 64 * 1024


class LimitedLog:
    """Passes on the first three quarters of the limit, and the last one at `end`.

    Output between the two is dropped. At most a quarter of the limit is held in memory. A store only adds to a log, so
    output that may be dropped later cannot be stored earlier; the log says from where on it may be lost.
    """

    def __init__(self, log: LogWriter, limit: int) -> None:
        self._log, self._limit = log, limit
        self._tail_bytes = limit // 4
        self._left = limit - self._tail_bytes
        self._tail = bytearray()
        self._dropped = 0
        self._marks: list[tuple[int, LogMark]] = []
        """The marks behind the cut, each with its byte position there, dropped bytes included."""
        self._line_open = self._cut = False

    async def write(self, data: bytes) -> None:
        if not self._cut:
            if len(data) <= self._left:
                return await self._pass_on(data)
            beginning = data[: self._left]
            # Cut at the end of a line, if there is one: masking would not find the halves of a cut secret.
            beginning = beginning[: beginning.rfind(b"\n") + 1] or beginning
            self._cut, data = True, data[len(beginning) :]
            await self._pass_on(beginning)
            await self.remark(
                f"the log is longer than {self._limit} bytes; of the rest only its end is stored, "
                "once the job has ended: it is lost if this worker is killed before"
            )
        self._tail += data
        if (excess := len(self._tail) - self._tail_bytes) > 0:
            self._dropped += excess
            del self._tail[:excess]
        return None

    async def mark(self, line: LogMark) -> None:
        """Write a mark at this place of the output; it is never dropped."""
        if self._cut:
            self._marks.append((self._dropped + len(self._tail), line))
        else:
            await self._log_mark(line)

    async def end(self) -> None:
        """Pass on the end of the output, after the job's last write."""
        tail, self._tail = bytes(self._tail), bytearray()
        if self._dropped:
            begin = tail.find(b"\n") + 1
            self._dropped, tail = self._dropped + begin, tail[begin:]
        marks, self._marks = self._marks, []
        for position, line in marks:
            if position < self._dropped:
                await self._log_mark(line)
        if self._dropped:
            await self.remark(f"{self._dropped} bytes are left out here")
        done = 0
        for position, line in marks:
            if position >= self._dropped:
                await self._pass_on_pieces(tail[done : position - self._dropped])
                done = position - self._dropped
                await self._log_mark(line)
        await self._pass_on_pieces(tail[done:])

    async def remark(self, text: str) -> None:
        """Write a mark with this text."""
        await self._log_mark(LogMark.of(f"! {text}"))

    async def _log_mark(self, line: LogMark) -> None:
        if self._line_open:
            self._line_open = False
            await self._log(b"\n")
        await self._log(line)

    async def _pass_on_pieces(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            await self._pass_on(data[start : start + PIECE_BYTES])

    async def _pass_on(self, data: bytes) -> None:
        if data:
            self._left -= len(data)
            self._line_open = not data.endswith(b"\n")
            await self._log(data)
