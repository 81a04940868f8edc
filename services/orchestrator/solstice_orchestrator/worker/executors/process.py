"""Run jobs as processes of this machine, each in a workspace and under a supervisor.

Each job gets a clean environment, and its supervisor leaves no process of it behind.

It does not isolate: a job runs as the orchestrator's user and can read what that user can read. Steps run with
`bash -eo pipefail` where the job's PATH has bash, else with `sh -e`.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.checkout_spec import CheckoutSpec
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.failures import is_machine
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.object_cache import CommitKey, ObjectCache
from solstice_orchestrator.git.objects.small_checkouts import SmallCheckouts
from solstice_orchestrator.git.repository import directory_bytes
from solstice_orchestrator.git.visits import SILENT_SECONDS, Visit
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.worker.executors.crowding import CrowdingWatch
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.job_environment import environment
from solstice_orchestrator.worker.executors.limited_log import LimitedLog
from solstice_orchestrator.worker.executors.output_silence import OutputSilence
from solstice_orchestrator.worker.executors.protocol import Execution, LogWriter
from solstice_orchestrator.worker.executors.supervisor_handle import SupervisorHandle, open_supervisor
from solstice_orchestrator.worker.executors.verdict import (
    CANCELLED,
    VANISHED,
    SupervisorVerdict,
    silent,
    to_outcome,
)
from solstice_orchestrator.worker.workspaces import Workspace, Workspaces

LOG = structlog.get_logger(__name__)

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SILENCE_CHECK_SECONDS: Final = 1.0
"""How often a checkout that has waited long for its git host is checked."""
SLACK_SECONDS: Final = 30.0
"""How late the supervisor may end before it counts as stopped and is killed."""
LAST_OUTPUT_SECONDS: Final = 120.0
"""How long the remaining output may take to reach the log. The store may be slow."""
ESCAPED_OUTPUT_SECONDS: Final = 5.0
"""The same when the supervisor was killed, and a hidden process may still write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExecutor:
    """The executor of processes; one per orchestrator, in its workspaces."""

    workspaces: Workspaces
    git: GitPolicy
    grace_seconds: float = 10.0
    """Between SIGTERM and SIGKILL."""
    max_log_bytes: int = 16 * 1024 * 1024
    path: str = DEFAULT_PATH
    """The job's PATH."""
    no_output_seconds: float = 0.0
    """How long a job without its own limit may write nothing; 0: without a limit."""
    disk: DiskWatch = field(default_factory=DiskWatch)
    crowding: CrowdingWatch = field(default_factory=CrowdingWatch)
    starting: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Entered for the time of each checkout, by any number at once."""
    hosts: GitHosts = field(default_factory=GitHosts)
    """The circuit breakers of git hosts."""
    objects: ObjectCache | None = None
    """Objects of fetched commits, for further checkouts."""
    small_checkouts: SmallCheckouts | None = None
    """Small checkouts, for further ones of the same commits."""
    isolates: bool = False

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        name = f"{execution.job_id}-{execution.attempt}"
        limited = LimitedLog(log, self.max_log_bytes)
        outcome: Outcome | None = None
        try:
            async with self.workspaces.attempt(name) as place:
                if execution.spec.checkout is not None:
                    with self.starting:
                        outcome = await self._check_out(
                            execution, execution.spec.checkout, place, limited, stop
                        )
                if outcome is None:
                    plan = self._plan(execution, place)
                    outcome = await self._supervise(execution, place, plan, limited, stop)
        except (OSError, RuntimeError) as error:
            # Before the job began, or else while its workspace was removed. RuntimeError: no thread could be started.
            outcome = outcome or Outcome(
                state=JobState.ERRORED,
                reason=Reason.MACHINE_FAILED if is_machine(error) else Reason.PROVISION_FAILED,
                detail=f"the attempt could not be set up in {self.workspaces.directory}: {error}",
            )
        await limited.end()
        if outcome.state is JobState.CANCELLED:
            await limited.remark("the job was asked to end")
        elif outcome.detail and outcome.state is not JobState.SUCCEEDED:
            await limited.remark(outcome.detail)
        return outcome

    async def _check_out(
        self,
        execution: Execution,
        spec: CheckoutSpec,
        place: Workspace,
        log: LimitedLog,
        stop: asyncio.Event,
    ) -> Outcome | None:
        """Check out the commit; return an outcome when that ends the attempt, else None."""
        request, key = execution.request, CommitKey.of(execution.request, self.git, spec)
        await log.mark(LogMark.of("$ checkout"))
        await log.write(f"{request.commit_sha} of {request.repo_url}\n".encode())
        if await self._written_again(key, place):
            return None
        pause = self.hosts.pause_of(request.repo_url, holds_slot=True)
        if pause is not None:
            return _away(pause)
        with self.hosts.visit(request.repo_url, holds_slot=True) as visit:
            ended = await self._bring(execution, spec, place, stop, visit=visit)
        if ended is None and self.small_checkouts:
            self.small_checkouts.keep(key, place.source)
        return ended

    async def _written_again(self, key: CommitKey, place: Workspace) -> bool:
        """Write a small checkout without git; return False where there is none.

        Its host must have given the commit a short time ago.
        """
        if self.small_checkouts is None:
            return False
        if self.objects and not self.objects.is_proven(key._replace(spec=key.spec.of_commit)):
            return False
        return await self.small_checkouts.write(key, place.source)

    async def _bring(
        self,
        execution: Execution,
        spec: CheckoutSpec,
        place: Workspace,
        stop: asyncio.Event,
        *,
        visit: Visit,
    ) -> Outcome | None:
        request = execution.request
        bringing = asyncio.create_task(
            check_out(
                request,
                place.source,
                policy=self.git,
                scratch=self.workspaces.scratch,
                objects=self.objects,
                spec=spec,
            ),
            name=f"checkout {execution.job_id}",
        )
        stopping = asyncio.create_task(stop.wait(), name=f"stop of {execution.job_id}")
        waiting = asyncio.create_task(
            self._reason_to_leave(visit, CommitKey.of(request, self.git, spec.of_commit), place),
            name=f"silence of {execution.job_id}",
        )
        others = [stopping, waiting]
        try:
            await asyncio.wait([bringing, *others], return_when=asyncio.FIRST_COMPLETED)
            if not bringing.done():
                return CANCELLED if stopping.done() else _away(waiting.result())
            bringing.result()
            self.hosts.answered(request.repo_url)
        except CheckoutFailed as error:
            if error.reason is Reason.CHECKOUT_FAILED:
                self.hosts.failed(
                    request.repo_url, error.detail, host_away=error.host_away and not visit.answered
                )
            elif error.reason is not Reason.MACHINE_FAILED:
                self.hosts.answered(request.repo_url)
            state = JobState.FAILED if error.reason is Reason.COMMIT_UNUSABLE else JobState.ERRORED
            return Outcome(state=state, reason=error.reason, step="checkout", detail=error.detail[:1000])
        finally:
            for task in (bringing, *others):
                task.cancel()
            await asyncio.wait([bringing, *others])
        return None

    async def _reason_to_leave(self, visit: Visit, key: CommitKey, place: Workspace) -> str:
        """Return why the checkout must leave its slot to others, once it must."""
        await asyncio.sleep(SILENT_SECONDS)
        git_dir = place.source / ".git"
        while True:
            fetched = self.objects.fetched_into(key, git_dir) if self.objects else git_dir
            if not visit.answered and await asyncio.to_thread(directory_bytes, fetched / "objects") > 0:
                visit.answered = True
                self.hosts.answered(key.repo_url)
            why = self.hosts.gives_way(visit)
            if why is not None:
                return why
            await asyncio.sleep(SILENCE_CHECK_SECONDS)

    def _plan(self, execution: Execution, place: Workspace) -> dict[str, Any]:
        """Write the steps' scripts, and return the plan for the supervisor."""
        bash = shutil.which("bash", path=self.path)
        shell = [bash, "--noprofile", "--norc", "-eo", "pipefail"] if bash else ["/bin/sh", "-e"]
        steps = []
        for number, step in enumerate(execution.spec.steps, start=1):
            script = place.scripts / f"{number:03}.sh"
            script.write_text(step.run + "\n", encoding="utf-8")
            steps.append(
                {
                    "argv": [*shell, str(script)],
                    "env": {
                        **step.env,
                        **{
                            name: execution.secrets[name] for name in (*execution.spec.secrets, *step.secrets)
                        },
                        "SOLSTICE_STEP": step.name,
                    },
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
        async with open_supervisor(execution, place) as supervisor:
            if not await supervisor.is_ready():
                return Outcome(
                    state=JobState.ERRORED,
                    reason=Reason.EXECUTOR_FAILED,
                    detail="the supervisor of the job's processes did not start",
                )
            supervisor.send(json.dumps(plan).encode() + b"\n")
            # From here on no failure counts as infrastructure: the running job may have caused it.
            outcome = to_outcome(VANISHED, execution.spec, requested=CANCELLED if stop.is_set() else None)
            try:
                async with (
                    self.disk.watching(place.root) as filling,
                    self.crowding.watching(supervisor.pid) as crowding,
                ):
                    outcome = await self._watched(execution.spec, supervisor, log, stop, (filling, crowding))
            except* Exception as errors:  # noqa: BLE001  no error here may pass for an infrastructure failure
                LOG.warning(
                    LogEvent.SUPERVISION_FAILED,
                    job_id=execution.job_id,
                    attempt=execution.attempt,
                    detail=repr(errors.exceptions)[:1000],
                )
        return outcome

    async def _watched(
        self,
        spec: JobSpec,
        supervisor: SupervisorHandle,
        log: LimitedLog,
        stop: asyncio.Event,
        greedy: Sequence[asyncio.Future[Outcome]],
    ) -> Outcome:
        """Pass on output until the job ends, and return the outcome.

        The job is asked to end when it is cancelled, silent for too long, or `greedy` has its outcome.
        """
        limit = spec.timeout_seconds + self.grace_seconds + SLACK_SECONDS
        quiet, silence = spec.no_output_seconds or self.no_output_seconds, OutputSilence()
        async with asyncio.TaskGroup() as tasks:
            pumping = tasks.create_task(supervisor.pump(log, silence), name="job output")
            marks = [LogMark.of(f"$ {step.name}") for step in spec.steps]
            beginning = tasks.create_task(supervisor.let_steps_begin(marks, log, silence), name="job steps")
            stopping = tasks.create_task(stop.wait(), name="job stop")
            hearing = tasks.create_task(silence.lasts(quiet), name="job silence")
            asking = tasks.create_task(
                self._request_end(supervisor, [stopping, hearing, *greedy]), name="job end"
            )
            overdue = False
            try:
                async with asyncio.timeout(limit):
                    verdict = await supervisor.verdict()
            except TimeoutError:
                # Only a supervisor that the job itself stopped (SIGSTOP) is this late.
                overdue, verdict = True, SupervisorVerdict(how="timed_out", scope="job")
            requested = None
            if stop.is_set():
                requested = CANCELLED
            elif taken := [future.result() for future in greedy if future.done()]:
                requested = taken[0]
            elif hearing.done():
                requested = silent(quiet)
            for task in (asking, stopping, hearing, beginning):
                task.cancel()
            lost = overdue or verdict.how == "vanished"
            if lost:
                await supervisor.kill()
            # With its verdict the job's processes have ended. Another job can hold the log pipe open all the same.
            written = tasks.create_task(supervisor.all_written(), name="job output written")
            await asyncio.wait(
                [pumping] if lost else [pumping, written],
                timeout=ESCAPED_OUTPUT_SECONDS if lost else LAST_OUTPUT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            pumping.cancel()
            written.cancel()
        return to_outcome(verdict, spec, requested=requested)

    async def _request_end(
        self, supervisor: SupervisorHandle, reasons: Sequence[asyncio.Future[Any]]
    ) -> None:
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        supervisor.send(b"stop\n")
        await asyncio.sleep(self.grace_seconds + SLACK_SECONDS)
        await supervisor.kill()


def _away(why: str) -> Outcome:
    return Outcome(state=JobState.ERRORED, reason=Reason.HOST_AWAY, step="checkout", detail=why)
