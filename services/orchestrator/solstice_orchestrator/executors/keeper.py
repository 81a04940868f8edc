"""A running supervisor, as the orchestrator holds it: its pipes, its verdict, and its certain end."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from solstice_orchestrator import supervisor
from solstice_orchestrator.children import ended, reading, start, writing
from solstice_orchestrator.endings import to_its_end
from solstice_orchestrator.executors.limited_log import LimitedLog
from solstice_orchestrator.executors.protocol import Execution
from solstice_orchestrator.executors.silence import Silence
from solstice_orchestrator.executors.verdict import Verdict, read_verdict
from solstice_orchestrator.marks import Announcements, Mark
from solstice_orchestrator.orphans import kill_orphans
from solstice_orchestrator.workspaces import Workspace, kill_marked

PIECE_BYTES: Final = 64 * 1024
START_SECONDS: Final = 60.0
"""How long the supervisor may take to say that it is there."""
LEAVE_SECONDS: Final = 5.0
"""How long the supervisor may take to kill everything before we do it."""


class Pipes(NamedTuple):
    """What connects us with a supervisor."""

    tell: Callable[[bytes], None]
    hang_up: Callable[[], None]
    verdicts: asyncio.StreamReader
    output: asyncio.StreamReader


class Keeper:
    """A running supervisor, as the orchestrator holds it."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: Pipes, workspace: Path) -> None:
        self._process, self._pipes, self._workspace = process, pipes, workspace

    async def is_ready(self) -> bool:
        try:
            async with asyncio.timeout(START_SECONDS):
                return bool(await self._pipes.verdicts.readline())
        except TimeoutError:
            return False

    def tell(self, words: bytes) -> None:
        self._pipes.tell(words)

    async def verdict(self) -> Verdict:
        """What the supervisor says in the end; `vanished` when it ended without a word."""
        said = await self._pipes.verdicts.read(PIECE_BYTES)
        words = said
        while said:
            said = await self._pipes.verdicts.read(PIECE_BYTES)
            words = (words + said)[-PIECE_BYTES:]
        return read_verdict(words)

    async def pump(self, log: LimitedLog, announced: Announcements, silence: Silence) -> None:
        """Carry output to the log until nobody is left to write any, with marks where steps begin."""
        while piece := await self._pipes.output.read(PIECE_BYTES):
            with silence.broken():
                for each in announced.feed(piece):
                    await (log.mark(each) if isinstance(each, Mark) else log.write(each))
        await log.write(announced.end())

    async def kill(self) -> None:
        """End every process of the attempt, now."""
        try:
            await asyncio.to_thread(self._kill)
        except RuntimeError:
            # The job has taken every process there may be, threads among them. It is killed all the same.
            self._kill()
        await kill_orphans()

    def _kill(self) -> None:
        # First what is below, for as long as it is known to be below; then the supervisor; then what lost it.
        if self._process.poll() is None:
            supervisor.kill_descendants(self._process.pid)
            self._process.kill()
        kill_marked(self._workspace)

    async def leave(self) -> None:
        """Close the control pipe, at which the supervisor kills everything, and see it gone."""
        self._pipes.hang_up()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await ended(self._process)
        except TimeoutError:
            await self.kill()
            await ended(self._process)
        # Also of a job that ended well: its supervisor may have left zombies.
        await kill_orphans()


@asynccontextmanager
async def open_supervisor(execution: Execution, place: Workspace) -> AsyncIterator[Keeper]:
    """A supervisor that has nothing to do yet; leaving ends it and all below it, also when cancelled."""
    process = start(
        (sys.executable, "-I", "-S", supervisor.__file__),
        Path("/"),
        {"LC_ALL": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with reading(process.stdout) as verdicts, reading(process.stderr) as output, ExitStack() as control:
        send = control.enter_context(writing(process.stdin))
        keeper = Keeper(process, Pipes(send, control.close, verdicts, output), place.root)
        try:
            yield keeper
        finally:
            await to_its_end(keeper.leave(), f"end of {execution.job_id}")
