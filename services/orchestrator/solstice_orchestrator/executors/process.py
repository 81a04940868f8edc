"""Runs jobs as processes of this machine: a private workspace, a clean environment, and a supervisor that leaves nothing.

It does not isolate: a job runs as the orchestrator's user and can read what that user can read. Steps run with
`bash -eo pipefail` where the job's PATH has bash, else with `sh -e`.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from solstice_orchestrator.executors.keeper import Keeper, open_supervisor
from solstice_orchestrator.executors.limited_log import LimitedLog
from solstice_orchestrator.executors.protocol import Execution, LogWriter
from solstice_orchestrator.executors.surroundings import environment
from solstice_orchestrator.executors.verdict import CANCELLED, VANISHED, Verdict, to_outcome
from solstice_orchestrator.git.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.jobs import JobState, Outcome, Reason
from solstice_orchestrator.workspaces import Workspace, Workspaces

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SLACK_SECONDS: Final = 30.0
"""How much later than it should the supervisor may end before it is taken for stopped, and killed."""
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
                detail=f"the attempt could not be set up in {self.workspaces.directory}: {error}",
            )
        if outcome.detail and outcome.state is not JobState.SUCCEEDED:
            await limited.remark(outcome.detail)
        return outcome

    async def _check_out(
        self, execution: Execution, place: Workspace, log: LimitedLog, stop: asyncio.Event
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
        log: LimitedLog,
        stop: asyncio.Event,
    ) -> Outcome:
        async with open_supervisor(execution, place) as keeper:
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

    async def _watched(self, keeper: Keeper, log: LimitedLog, stop: asyncio.Event, limit: float) -> Verdict:
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

    async def _ask_to_stop(self, keeper: Keeper, stop: asyncio.Event) -> None:
        await stop.wait()
        keeper.tell(b"stop\n")
        await asyncio.sleep(self.grace_seconds + SLACK_SECONDS)
        await keeper.kill()
