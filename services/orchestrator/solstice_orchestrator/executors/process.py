"""Runs jobs as processes of this machine: a private workspace, a clean environment, and a supervisor that leaves nothing.

It does not isolate: a job runs as the orchestrator's user and can read what that user can read. Steps run with
`bash -eo pipefail` where the job's PATH has bash, else with `sh -e`.
"""

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from solstice_orchestrator import supervisor
from solstice_orchestrator.checkout import check_out
from solstice_orchestrator.endings import to_its_end
from solstice_orchestrator.executors.protocol import Execution, LogWriter
from solstice_orchestrator.executors.verdict import CANCELLED, VANISHED, Verdict, read_verdict, to_outcome
from solstice_orchestrator.git import CheckoutFailed, GitPolicy
from solstice_orchestrator.jobs import JobState, Outcome, Reason
from solstice_orchestrator.workspaces import Workspace, Workspaces, kill_marked

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PIECE_BYTES: Final = 64 * 1024
START_SECONDS: Final = 60.0
"""How long the supervisor may take to say that it is there."""
SLACK_SECONDS: Final = 30.0
"""How much later than it should the supervisor may end before it is taken for stopped, and killed."""
LEAVE_SECONDS: Final = 5.0
"""How long the supervisor may take to kill everything before we do it."""
LAST_OUTPUT_SECONDS: Final = 120.0
"""How long what was written may take to reach the log once nobody is left who writes: the store may be slow."""
ESCAPED_OUTPUT_SECONDS: Final = 5.0
"""The same when the supervisor was killed and somebody may be left: a process that hid from us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExecutor:
    """One per orchestrator, in its workspaces."""

    workspaces: Workspaces
    git: GitPolicy
    grace_seconds: float = 10.0
    """Between SIGTERM and SIGKILL."""
    max_log_bytes: int = 16 * 1024 * 1024
    path: str = DEFAULT_PATH
    """The job's PATH."""
    isolates: bool = False

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        name = f"{execution.job_id}-{execution.attempt}"
        limited = LimitedLog(log, self.max_log_bytes)
        outcome: Outcome | None = None
        try:
            async with self.workspaces.attempt(name) as place:
                outcome = await self._check_out(execution, place, limited, stop)
                if outcome is None:
                    plan = self._plan(execution, place)
                    outcome = await self._supervise(execution, place, plan, limited, stop)
        except OSError as error:
            # Only before the job began: what happens later is the job's, or is about tidying up.
            outcome = outcome or Outcome(
                state=JobState.ERRORED,
                reason=Reason.PROVISION_FAILED,
                detail=f"no workspace could be made below {self.workspaces.directory}: {error}",
            )
        if outcome.detail and outcome.state is not JobState.SUCCEEDED:
            await limited.remark(outcome.detail)
        return outcome

    async def _check_out(
        self, execution: Execution, place: Workspace, log: "LimitedLog", stop: asyncio.Event
    ) -> Outcome | None:
        """Bring the commit; the outcome when that was the end."""
        request = execution.request
        await log.write(f"$ checkout\n{request.commit_sha} of {request.repo_url}\n".encode())
        bringing = asyncio.create_task(
            check_out(request, place.source, policy=self.git, scratch=self.workspaces.scratch),
            name=f"checkout {execution.job_id}",
        )
        stopping = asyncio.create_task(stop.wait(), name=f"stop of {execution.job_id}")
        try:
            await asyncio.wait([bringing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not bringing.done():
                return CANCELLED
            bringing.result()
        except CheckoutFailed as error:
            return Outcome(
                state=JobState.ERRORED, reason=error.reason, step="checkout", detail=error.detail[:1000]
            )
        finally:
            stopping.cancel()
            bringing.cancel()
            await asyncio.wait([bringing, stopping])
        return None

    def _plan(self, execution: Execution, place: Workspace) -> dict[str, Any]:
        """What the supervisor is told; writes the steps' scripts."""
        bash = shutil.which("bash", path=self.path)
        shell = [bash, "--noprofile", "--norc", "-eo", "pipefail"] if bash else ["/bin/sh", "-e"]
        steps = []
        for number, step in enumerate(execution.spec.steps, start=1):
            script = place.scripts / f"{number:03}.sh"
            script.write_text(step.run + "\n", encoding="utf-8")
            steps.append(
                {
                    "announcement": f"$ {step.name}",
                    "argv": [*shell, str(script)],
                    "env": {**step.env, "SOLSTICE_STEP": step.name},
                    "timeout": step.timeout_seconds,
                }
            )
        return {
            "directory": str(place.source),
            "env": environment(execution, place, self.path),
            "grace": self.grace_seconds,
            "timeout": execution.spec.timeout_seconds,
            "steps": steps,
        }

    async def _supervise(
        self,
        execution: Execution,
        place: Workspace,
        plan: Mapping[str, Any],
        log: "LimitedLog",
        stop: asyncio.Event,
    ) -> Outcome:
        async with _supervisor(execution, place) as keeper:
            if not await keeper.is_ready():
                return Outcome(
                    state=JobState.ERRORED,
                    reason=Reason.EXECUTOR_FAILED,
                    detail="the supervisor of the job's processes did not start",
                )
            keeper.tell(json.dumps(plan).encode() + b"\n")
            limit = execution.spec.timeout_seconds + self.grace_seconds + SLACK_SECONDS
            try:
                verdict = await self._watched(keeper, log, stop, limit)
            except* OSError:
                verdict = VANISHED
        return to_outcome(verdict, execution.spec, stop_asked=stop.is_set())

    async def _watched(
        self, keeper: "_Keeper", log: "LimitedLog", stop: asyncio.Event, limit: float
    ) -> Verdict:
        """The verdict, while output flows and somebody may cancel."""
        async with asyncio.TaskGroup() as tasks:
            pumping = tasks.create_task(keeper.pump(log), name="job output")
            asking = tasks.create_task(self._ask_to_stop(keeper, stop), name="job stop")
            overdue = False
            try:
                async with asyncio.timeout(limit):
                    verdict = await keeper.verdict()
            except TimeoutError:
                # Only a supervisor that the job itself stopped (SIGSTOP) is this late.
                overdue, verdict = True, Verdict(how="timed_out", scope="job")
            asking.cancel()
            lost = overdue or verdict.how == "vanished"
            if lost:
                await keeper.kill()
            await asyncio.wait([pumping], timeout=ESCAPED_OUTPUT_SECONDS if lost else LAST_OUTPUT_SECONDS)
            pumping.cancel()
        return verdict

    async def _ask_to_stop(self, keeper: "_Keeper", stop: asyncio.Event) -> None:
        await stop.wait()
        keeper.tell(b"stop\n")
        await asyncio.sleep(self.grace_seconds + SLACK_SECONDS)
        await keeper.kill()


def environment(execution: Execution, place: Workspace, path: str) -> dict[str, str]:
    """What every step finds in its environment; the workflow's `env` wins, except for the names SOLSTICE_*."""
    request, user = execution.request, _user()
    known = {
        "SOLSTICE_REF": request.ref,
        "SOLSTICE_EVENT": request.event,
        "SOLSTICE_CHANGE_NUMBER": request.change_number,
        "SOLSTICE_REPOSITORY": request.repo_full_name,
    }
    return {
        "PATH": path,
        "HOME": str(place.home),
        "TMPDIR": str(place.temporary),
        "USER": user,
        "LOGNAME": user,
        "LANG": "C.UTF-8",
        "CI": "true",
        **execution.spec.env,
        "SOLSTICE": "true",
        "SOLSTICE_ATTEMPT": str(execution.attempt),
        "SOLSTICE_COMMIT_SHA": request.commit_sha,
        "SOLSTICE_JOB_ID": execution.job_id,
        "SOLSTICE_JOB_NAME": execution.spec.name,
        "SOLSTICE_REPO_URL": request.repo_url,
        "SOLSTICE_REQUEST_ID": request.request_id,
        "SOLSTICE_SOURCE": request.source.value,
        "SOLSTICE_WORKSPACE": str(place.source),
        **{name: str(value) for name, value in known.items() if value is not None},
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class LimitedLog:
    """The job's log up to its limit, and our own remarks beyond it."""

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


class _Keeper:
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

    async def pump(self, log: LimitedLog) -> None:
        """Carry output to the log until nobody is left to write any."""
        while piece := await self._output.read(PIECE_BYTES):
            await log.write(piece)

    async def kill(self) -> None:
        """End every process of the attempt, now."""
        await asyncio.to_thread(self._kill)

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
async def _supervisor(execution: Execution, place: Workspace) -> AsyncIterator[_Keeper]:
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
        keeper = _Keeper(process, output, place.root)
        try:
            yield keeper
        finally:
            await to_its_end(keeper.leave(), f"end of {execution.job_id}")
    finally:
        transport.close()
