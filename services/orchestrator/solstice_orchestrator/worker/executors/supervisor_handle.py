"""The orchestrator's side of a supervisor: its pipes, its verdict, and its end."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from solstice_orchestrator.domain.jobs import JobSpec
from solstice_orchestrator.domain.log_marks import LogMark, StepMarks, went_on
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes import supervisor
from solstice_orchestrator.processes.children import PipeReader, exit_code, pipe_reader, pipe_writer, start
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.processes.control_groups import ControlGroup
from solstice_orchestrator.processes.forked_supervisors import ForkedSupervisor
from solstice_orchestrator.processes.orphans import kill_orphans
from solstice_orchestrator.processes.small_copies import reason_of, sent, write_checkout
from solstice_orchestrator.worker.executors.limited_log import LimitedLog
from solstice_orchestrator.worker.executors.output_silence import OutputSilence
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.executors.verdict import (
    StepNews,
    SupervisorVerdict,
    read_verdict,
    step_news,
    to_outcome,
)
from solstice_orchestrator.worker.workspaces import Workspace, kill_marked

LOG = structlog.get_logger(__name__)

PIECE_BYTES: Final = 64 * 1024
START_SECONDS: Final = 60.0
"""How long the supervisor may take to report that it is ready."""
STOLEN_SECONDS: Final = 0.05
"""How often to check whether a job took awaited output from its own log pipe."""
ORPHANS_SECONDS: Final = 1.0
"""How often to look for orphans while all supervisors end well."""
LEAVE_SECONDS: Final = 5.0
"""How long the supervisor may take to kill all processes before the orchestrator does it."""


class Pipes(NamedTuple):
    """The pipes between the orchestrator and a supervisor."""

    send: Callable[[bytes], None]
    hang_up: Callable[[], None]
    verdicts: asyncio.StreamReader
    output: PipeReader


class SupervisorHandle:
    """The orchestrator's handle of a running supervisor."""

    def __init__(
        self,
        process: subprocess.Popen[bytes] | ForkedSupervisor,
        pipes: Pipes,
        workspace: Path,
        group: ControlGroup | None,
    ) -> None:
        self._process, self._pipes, self._workspace, self._group = process, pipes, workspace, group
        self._news: asyncio.Queue[StepNews | None] = asyncio.Queue()
        self._next_step = 0
        self._has_verdict = False
        self._in_log, self._all_in_log, self._moving = 0, False, asyncio.Condition()
        """The output bytes in the log, whether these are all, and the log's lock."""

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        return self._process.pid

    async def is_ready(self, within_seconds: float = START_SECONDS) -> bool:
        """Return whether it reports itself; raises OSError when it could not write its checkout."""
        try:
            async with asyncio.timeout(within_seconds):
                line = await self._pipes.verdicts.readline()
        except TimeoutError:
            return False
        if (is_whole := line.endswith(b"\n")) and (reason := reason_of(line)) is not None:
            raise reason
        return is_whole

    def send(self, data: bytes) -> None:
        self._pipes.send(data)

    async def verdict(self) -> SupervisorVerdict:
        """Wait for the supervisor's verdict; `vanished` when it ended without one."""
        last = rest = b""
        while piece := await self._pipes.verdicts.read(PIECE_BYTES):
            *lines, rest = (rest + piece)[-PIECE_BYTES:].split(b"\n")
            for line in lines:
                news = step_news(line)
                if news is None:
                    last = line
                elif news.failure is not None or news.number >= self._next_step:
                    self._next_step = max(self._next_step, news.number + 1)
                    self._news.put_nowait(news)
        self._has_verdict = True
        self._news.put_nowait(None)
        return read_verdict(rest or last)

    async def pump(self, log: LimitedLog, silence: OutputSilence) -> None:
        """Copy output to the log until every writer has closed the pipe."""
        while piece := await self._pipes.output.read(PIECE_BYTES):
            with silence.broken():
                async with self._moving:
                    await log.write(piece)
                    self._in_log += len(piece)
                    self._moving.notify_all()
        async with self._moving:
            self._all_in_log = True
            self._moving.notify_all()

    @property
    def is_all_written(self) -> bool:
        """Whether all output that was written up to now is in the log."""
        return self._all_in_log or self._in_log >= self._pipes.output.arrived

    async def all_written(self) -> None:
        """Return once all output that was written up to now is in the log."""
        written = self._pipes.output.arrived
        async with self._moving:
            await self._catch_up(written)

    async def let_steps_begin(
        self,
        spec: JobSpec,
        marks: StepMarks,
        log: LimitedLog,
        silence: OutputSilence,
        provisioned: Callable[[], None],
    ) -> None:
        """Let each step begin once earlier output and its mark are in the log.

        A step without a mark begins at once. Before the first with one, `provisioned` is called. It returns after the
        verdict, when the log has the last mark.

        The job cannot influence this: the supervisor announces steps on a pipe that the job does not have.
        """
        while news := await self._news.get():
            if news.failure is not None:
                detail = to_outcome(news.failure, spec, requested=None).detail
                await self._mark([went_on(detail)], log, silence)
            elif not self._has_verdict:
                if lines := marks.beginning(news.number):
                    provisioned()
                    await self._mark(lines, log, silence)
                self.send(b"go\n")
        await self._mark(marks.rest(), log, silence)

    async def _mark(self, lines: Sequence[LogMark], log: LimitedLog, silence: OutputSilence) -> None:
        """Write marks behind all output up to now."""
        if not lines:
            return
        with silence.broken():
            async with self._moving:
                await self._catch_up(self._pipes.output.arrived)
                for line in lines:
                    await log.mark(line)

    async def _catch_up(self, written: int) -> None:
        while not self._all_in_log and self._in_log < min(written, self._pipes.output.arrived):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOLEN_SECONDS):
                    await self._moving.wait()

    async def kill(self) -> None:
        """Kill every process of the attempt now."""
        try:
            await asyncio.to_thread(self._kill)
        except RuntimeError:
            # The job has used up all processes and threads. It is killed nevertheless.
            self._kill()
        await kill_orphans()

    def _kill(self) -> None:
        # First the descendants, while they can be found as such; then the supervisor; then processes that lost it.
        if self._group:
            self._group.kill()
        if self._process.poll() is None:
            supervisor.kill_descendants(self._process.pid)
            self._process.kill()
        kill_marked(self._workspace)

    async def leave(self) -> None:
        """Close the control pipe, so that the supervisor kills everything, and wait for its end."""
        self._pipes.hang_up()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                code = await exit_code(self._process)
        except TimeoutError:
            await self.kill()
            code = await exit_code(self._process)
        # A supervisor that ends with 0 left nothing; the kernel tells us the code, so no job can forge it. Now and then
        # we look nevertheless: git may have left zombies. The group ends with the workspace in any case.
        if code != 0 and self._group and not await self._group.end():
            LOG.error(LogEvent.PROCESSES_NOT_ENDED, directory=str(self._group.path), count=None)
        await kill_orphans(pause_seconds=ORPHANS_SECONDS if code == 0 else 0.0)


@asynccontextmanager
async def open_supervisor(
    execution: Execution, workspace: Workspace, plan: bytes = b""
) -> AsyncIterator[SupervisorHandle]:
    """Start a supervisor with this plan; leaving ends it and all its descendants.

    It writes the checkout of the workspace, and begins no step before it is allowed to. A cancelled caller waits for its
    end too. Raises OSError.
    """
    group = workspace.group.path if workspace.group else None
    words = plan if workspace.checkout is None else sent(workspace.checkout.packed) + plan
    forked = (
        await workspace.starter.fork(group, words, workspace.source if workspace.checkout else None)
        if workspace.starter
        else None
    )
    if forked is None:
        words = plan
        if workspace.checkout:
            _set_aside(workspace.source)
        await write_checkout_here(workspace)
    process = forked or start(
        (sys.executable, "-I", "-S", supervisor.__file__, *([str(group)] if group else [])),
        Path("/"),
        {"LC_ALL": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with (
        pipe_reader(process.stdout) as verdicts,
        pipe_reader(process.stderr) as output,
        ExitStack() as control,
    ):
        send = control.enter_context(pipe_writer(process.stdin))
        if rest := words[forked.given if forked else 0 :]:
            send(rest)
        handle = SupervisorHandle(
            process, Pipes(send, control.close, verdicts, output), workspace.root, workspace.group
        )
        try:
            yield handle
        finally:
            await run_to_completion(handle.leave(), f"end of {execution.job_id}")


async def write_checkout_here(workspace: Workspace) -> None:
    """Write the checkout in a thread of this process; raises OSError, and RuntimeError without one."""
    if workspace.checkout is not None:
        writing = asyncio.to_thread(write_checkout, workspace.checkout.packed, str(workspace.source))
        await run_to_completion(writing, "small checkout")


def _set_aside(directory: Path) -> None:
    """Put an empty directory in the place of this one.

    A supervisor that was forked too late may still write there. It sees before its next file that its pipe is closed.
    """
    directory.rename(directory.with_name("aside"))
    directory.mkdir(mode=0o700)
