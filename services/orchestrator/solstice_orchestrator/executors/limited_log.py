"""A job's log up to its limit, and what we ourselves have to say in it."""

from solstice_orchestrator.executors.protocol import LogWriter


class LimitedLog:
    """Passes on as much as there may be, and our own remarks beyond it."""

    def __init__(self, log: LogWriter, limit: int) -> None:
        self._log, self._left, self._limit = log, limit, limit
        self._line_open = self._cut = False

    async def write(self, data: bytes) -> None:
        kept = data[: self._left]
        self._left -= len(kept)
        if kept:
            self._line_open = not kept.endswith(b"\n")
            await self._log(kept)
        if len(kept) < len(data) and not self._cut:
            self._cut = True
            await self.remark(f"the log is longer than {self._limit} bytes; what follows is not kept")

    async def remark(self, text: str) -> None:
        """A line of ours."""
        before = "\n" if self._line_open else ""
        self._line_open = False
        await self._log(f"{before}! {text}\n".encode())
