"""A running supervisor, as the orchestrator holds it: its pipes, its verdict, and its certain end."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from solstice_orchestrator import supervisor
from solstice_orchestrator.endings import to_its_end
from solstice_orchestrator.executors.limited_log import LimitedLog
from solstice_orchestrator.executors.protocol import Execution
from solstice_orchestrator.executors.silence import Silence
from solstice_orchestrator.executors.verdict import Verdict, read_verdict
from solstice_orchestrator.workspaces import Workspace, kill_marked

PIECE_BYTES: Final = 64 * 1024
START_SECONDS: Final = 60.0
"""How long the supervisor may take to say that it is there."""
LEAVE_SECONDS: Final = 5.0
"""How long the supervisor may take to kill everything before we do it."""


class Keeper:
    """A running supervisor, as the orchestrator holds it."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, workspace: Path
    ) -> None:
        self._process, self._output, self._workspace = process, output, workspace

    async def is_ready(self) -> bool:
        try:
            async with asyncio.timeout(START_SECONDS):
                return bool(await self._verdicts.readline())
        except TimeoutError:
            return False

    @property
    def _verdicts(self) -> asyncio.StreamReader:
        if self._process.stdout is None:
            raise RuntimeError("the supervisor was started without a verdict pipe")
        return self._process.stdout

    def tell(self, words: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(words)

    async def verdict(self) -> Verdict:
        """What the supervisor says in the end; `vanished` when it ended without a word."""
        said = await self._verdicts.read(PIECE_BYTES)
        words = said
        while said:
            said = await self._verdicts.read(PIECE_BYTES)
            words = (words + said)[-PIECE_BYTES:]
        return read_verdict(words)

    async def pump(self, log: LimitedLog, silence: Silence) -> None:
        """Carry output to the log until nobody is left to write any."""
        while piece := await self._output.read(PIECE_BYTES):
            with silence.broken():
                await log.write(piece)

    async def kill(self) -> None:
        """End every process of the attempt, now."""
        try:
            await asyncio.to_thread(self._kill)
        except RuntimeError:
            # The job has taken every process there may be, threads among them. It is killed all the same.
            self._kill()

    def _kill(self) -> None:
        # First what is below, for as long as it is known to be below; then the supervisor; then what lost it.
        if self._process.returncode is None:
            supervisor.kill_descendants(self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        kill_marked(self._workspace)

    async def leave(self) -> None:
        """Close the control pipe, at which the supervisor kills everything, and see it gone."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
            await self._process.wait()


@asynccontextmanager
async def open_supervisor(execution: Execution, place: Workspace) -> AsyncIterator[Keeper]:
    """A supervisor that has nothing to do yet; leaving ends it and all below it, also when cancelled."""
    reader, writer = os.pipe()
    loop = asyncio.get_running_loop()
    output = asyncio.StreamReader(limit=PIECE_BYTES)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reader, "rb", buffering=0)
    )
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                supervisor.__file__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=writer,
                cwd="/",
                env={"LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        finally:
            os.close(writer)
        keeper = Keeper(process, output, place.root)
        try:
            yield keeper
        finally:
            await to_its_end(keeper.leave(), f"end of {execution.job_id}")
    finally:
        transport.close()
