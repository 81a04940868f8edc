"""Run jobs, each in a workspace and under a supervisor, as a launcher says.

Each job gets a clean environment, and its supervisor leaves no process of it behind.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.log_marks import END_OF_SERVICE, LogMark, StepMarks
from solstice_orchestrator.git.failures import is_machine
from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes.completion import run_beside
from solstice_orchestrator.worker.artifacts.handing import Handing
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.artifacts.report_reading import ReportReading
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.caches.job_caches import CachingJob, JobCaches
from solstice_orchestrator.worker.executors.crowding import CrowdingWatch
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.host_launcher import HostLauncher
from solstice_orchestrator.worker.executors.launcher import Launch, Launcher
from solstice_orchestrator.worker.executors.limited_log import LimitedLog
from solstice_orchestrator.worker.executors.output_silence import OutputSilence
from solstice_orchestrator.worker.executors.protocol import Execution, LogWriter
from solstice_orchestrator.worker.executors.service_output import reading
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from solstice_orchestrator.worker.executors.supervisor_handle import (
    START_SECONDS,
    SupervisorHandle,
    open_supervisor,
    write_checkout_here,
)
from solstice_orchestrator.worker.executors.verdict import (
    CANCELLED,
    VANISHED,
    SupervisorVerdict,
    silent,
    to_outcome,
)
from solstice_orchestrator.worker.workspaces import Workspace, Workspaces

LOG = structlog.get_logger(__name__)

SLACK_SECONDS: Final = 30.0
"""How late the supervisor may end before it counts as stopped and is killed."""
CHECKOUT_SECONDS: Final = 600.0
"""How long a supervisor may take to write a small checkout. The disk may be slow."""
LAST_OUTPUT_SECONDS: Final = 120.0
"""How long the remaining output may take to reach the log. The store may be slow."""
ESCAPED_OUTPUT_SECONDS: Final = 5.0
"""The same when the supervisor was killed, and a hidden process may still write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExecutor:
    """The executor of processes; one per orchestrator, in its workspaces."""

    workspaces: Workspaces
    checkout: SourceCheckout
    grace_seconds: float = 10.0
    """Between SIGTERM and SIGKILL."""
    max_log_bytes: int = 16 * 1024 * 1024
    launcher: Launcher = field(default_factory=HostLauncher)
    """Where the steps run."""
    no_output_seconds: float = 0.0
    """How long a job without its own limit may write nothing; 0: without a limit."""
    disk: DiskWatch = field(default_factory=DiskWatch)
    crowding: CrowdingWatch = field(default_factory=CrowdingWatch)
    artifacts: ArtifactKeeping | None = None
    """None: artifacts are not kept, and a job that has one fails."""
    reports: ReportReading = field(default_factory=ReportReading)
    caches: JobCaches | None = None

    @property
    def isolates(self) -> bool:
        return self.launcher.isolates

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        name = f"{execution.job_id}-{execution.attempt}"
        limited = LimitedLog(log, self.max_log_bytes)
        handing = Handing(keeping=self.artifacts, attempt=execution, log=limited, stop=stop)
        outcome: Outcome | None = None
        try:
            async with self.workspaces.attempt(name) as empty:
                if execution.spec.notice:
                    await limited.mark(LogMark.of(f"- {execution.spec.notice}"))
                brought = await self.checkout.bring(execution, empty, limited, stop)
                if isinstance(brought, Outcome):
                    outcome = brought
                else:
                    workspace = await self._with_checkout(empty, brought, execution)
                    caching = self._caching_job(execution, workspace)
                    sought = (
                        await self.caches.restore(caching, limited, stop) if self.caches and caching else ()
                    )
                    given = await handing.hand_in(workspace.source)
                    outcome = (
                        given
                        if isinstance(given, Outcome)
                        else await self._with_launch(
                            replace(execution, given=given), workspace, handing, limited, stop
                        )
                    )
                    if outcome.state is JobState.SUCCEEDED and self.caches and caching:
                        await self.caches.save(caching, sought, limited, stop)
        except (OSError, RuntimeError) as error:
            # Before the job began, or else while its workspace was removed. RuntimeError: no thread could be started.
            outcome = outcome or Outcome(
                state=JobState.ERRORED,
                reason=Reason.MACHINE_FAILED if is_machine(error) else Reason.PROVISION_FAILED,
                detail=f"the attempt could not be set up in {self.workspaces.directory}: {error}",
            )
        execution.provisioning.end()
        outcome = replace(outcome, provisioning_seconds=execution.provisioning.seconds)
        await limited.end()
        if outcome.state is JobState.CANCELLED:
            await limited.remark("the job was asked to end")
        elif outcome.detail and outcome.state is not JobState.SUCCEEDED:
            await limited.remark(outcome.detail)
        return outcome

    async def _with_launch(
        self,
        execution: Execution,
        workspace: Workspace,
        handing: Handing,
        log: LimitedLog,
        stop: asyncio.Event,
    ) -> Outcome:
        async with self.launcher.launch(execution, workspace) as launch:
            if isinstance(launch, Outcome):
                return launch
            outcome = await self._launched(execution, workspace, launch, log, stop)
        source = launch.source or WorkspaceFiles(workspace.source)
        outcome = await self.reports.keep(
            execution,
            source if launch.leaves_reports else None,
            (str(workspace.source), launch.environment.get("SOLSTICE_WORKSPACE", "")),
            outcome,
            remark=log.remark,
            stop=stop,
        )
        if outcome.state is JobState.SUCCEEDED:
            written = launch.written or WorkspaceFiles(workspace.temporary)
            outcome = await handing.hand_out(source, written, outcome)
        return outcome

    async def _with_checkout(
        self, workspace: Workspace, copy: CheckoutCopy | None, execution: Execution
    ) -> Workspace:
        """Return the workspace with a small checkout that its supervisor writes.

        Where it is needed earlier, it is written now.
        """
        if copy is None:
            return workspace
        unwritten = replace(workspace, checkout=copy)
        spec = execution.spec
        if not (self.launcher.needs_files(execution) or spec.needed_artifacts or spec.caches):
            return unwritten
        with self.checkout.starting():
            await write_checkout_here(unwritten)
        return workspace

    def _caching_job(self, execution: Execution, workspace: Workspace) -> CachingJob | None:
        """Return the job for its caches; None: it has none."""
        if self.caches is None or not execution.spec.caches:
            return None
        return CachingJob(
            job_id=execution.job_id,
            specs=execution.spec.caches,
            request=execution.request,
            workspace=workspace,
            system=self.launcher.system(execution),
        )

    def _plan(self, execution: Execution, launch: Launch) -> dict[str, Any]:
        """Return the plan for the supervisor."""
        spec = launch.with_added_steps(execution.spec)
        return {
            "directory": str(launch.directory),
            "env": {**launch.own_environment, **launch.handed(launch.environment)},
            "grace": self.grace_seconds,
            "timeout": spec.timeout_seconds,
            "setup": launch.setup_seconds,
            "isolated": launch.isolates,
            # Artifacts, outputs, reports and caches are taken from the workspace after the supervisor's end.
            "remove": "" if spec.hands_out or spec.reports or spec.caches else str(launch.removes or ""),
            "steps": [
                *(
                    [
                        {
                            "argv": list(launch.setup),
                            "env": {},
                            "timeout": launch.setup_seconds or None,
                            "ends": True,
                        }
                    ]
                    if launch.setup
                    else []
                ),
                *(
                    {
                        "argv": list(command),
                        "env": launch.handed(
                            {
                                **step.env,
                                **{name: execution.secrets[name] for name in (*spec.secrets, *step.secrets)},
                                "SOLSTICE_STEP": step.name,
                            }
                        ),
                        "timeout": step.timeout_seconds,
                        **({} if step.is_plain else {"when": step.when.value, "may_fail": step.may_fail}),
                    }
                    for step, command in zip(spec.steps, launch.commands, strict=True)
                ),
            ],
        }

    async def _launched(
        self, execution: Execution, workspace: Workspace, launch: Launch, log: LimitedLog, stop: asyncio.Event
    ) -> Outcome:
        if launch.notice:
            await log.mark(LogMark.of(launch.title))
            await log.write(f"{launch.notice}\n".encode())
        logs = {
            name: LimitedLog(partial(execution.service_log, name), self.max_log_bytes)
            for name in launch.services
        }
        async with reading(launch.services, lambda name, piece: logs[name].write(piece)):
            outcome = await self._supervise(execution, workspace, launch, log, stop)
        for each in logs.values():
            await each.end()
        for name, output in launch.services.items():
            if output.tail and outcome.state is not JobState.SUCCEEDED:
                await log.mark(LogMark.of(f"{END_OF_SERVICE.decode()}{name} wrote"))
                await log.write(bytes(output.tail))
        return launch.judged(outcome)

    async def _supervise(
        self,
        execution: Execution,
        workspace: Workspace,
        launch: Launch,
        log: LimitedLog,
        stop: asyncio.Event,
    ) -> Outcome:
        plan = json.dumps(self._plan(execution, launch)).encode() + b"\n"
        async with AsyncExitStack() as leaving:
            with self.checkout.starting() if workspace.checkout else nullcontext():
                supervisor = await leaving.enter_async_context(open_supervisor(execution, workspace, plan))
                is_ready = await supervisor.is_ready(
                    CHECKOUT_SECONDS if workspace.checkout else START_SECONDS
                )
            if not is_ready:
                return Outcome(
                    state=JobState.ERRORED,
                    reason=Reason.EXECUTOR_FAILED,
                    detail="the supervisor of the job's processes did not start",
                )
            # It waits to be allowed the first step. From here on no failure counts as infrastructure: the running job may
            # have caused it.
            outcome = to_outcome(VANISHED, execution.spec, requested=CANCELLED if stop.is_set() else None)
            try:
                with (
                    self.disk.watching(workspace.root, supervisor.pid, launch.storage) as filling,
                    self.crowding.watching(supervisor.pid) as crowding,
                ):
                    outcome = await self._watched(
                        execution,
                        supervisor,
                        log,
                        stop,
                        greedy=(filling, crowding),
                        launch=launch,
                    )
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
        execution: Execution,
        supervisor: SupervisorHandle,
        log: LimitedLog,
        stop: asyncio.Event,
        *,
        greedy: Sequence[asyncio.Future[Outcome]],
        launch: Launch,
    ) -> Outcome:
        """Pass on output until the job ends, and return the outcome.

        The job is asked to end when it is cancelled, silent for too long, or `greedy` has its outcome.
        """
        spec, has_setup = launch.with_added_steps(execution.spec), bool(launch.setup)
        limit = launch.setup_seconds + spec.timeout_seconds + self.grace_seconds + SLACK_SECONDS
        quiet, silence = (
            spec.no_output_seconds or self.no_output_seconds,
            OutputSilence(begun=not has_setup),
        )
        async with asyncio.TaskGroup() as tasks:
            pumping = tasks.create_task(supervisor.pump(log, silence), name="job output")
            marks = StepMarks(spec.steps, has_setup=has_setup)
            beginning = tasks.create_task(
                supervisor.let_steps_begin(
                    launch.numbered(spec), marks, log, silence, execution.provisioning.end
                ),
                name="job steps",
            )
            stopping = tasks.create_task(stop.wait(), name="job stop")
            hearing = asyncio.get_running_loop().create_future()
            asking = tasks.create_task(
                self._request_end(supervisor, [stopping, hearing, *greedy]), name="job end"
            )
            overdue = False
            try:
                async with asyncio.timeout(limit):
                    with _reported(silence, quiet, hearing):
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
            lost = overdue or verdict.how == "vanished"
            is_marked = not lost and not all(step.is_plain for step in spec.steps)
            for task in (asking, stopping, *([] if is_marked else [beginning])):
                task.cancel()
            if lost:
                await supervisor.kill()
            if lost or not supervisor.is_all_written:
                # With its verdict the job's processes have ended. Another job can hold the log pipe open nevertheless.
                written = tasks.create_task(supervisor.all_written(), name="job output written")
                await asyncio.wait(
                    [pumping] if lost else [pumping, written],
                    timeout=ESCAPED_OUTPUT_SECONDS if lost else LAST_OUTPUT_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                written.cancel()
            if is_marked:
                await asyncio.wait([beginning], timeout=LAST_OUTPUT_SECONDS)
                beginning.cancel()
            pumping.cancel()
        if has_setup and verdict.step is not None:
            verdict = replace(verdict, step=verdict.step - 1 if verdict.step else None)
        return to_outcome(verdict, spec, requested=requested, isolated=launch.isolates)

    async def _request_end(
        self, supervisor: SupervisorHandle, reasons: Sequence[asyncio.Future[Any]]
    ) -> None:
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        supervisor.send(b"stop\n")
        await asyncio.sleep(self.grace_seconds + SLACK_SECONDS)
        await supervisor.kill()


@contextmanager
def _reported(silence: OutputSilence, seconds: float, reached: "asyncio.Future[None]") -> Iterator[None]:
    """Give `reached` its result once the job has been silent for so long.

    With 0, it never gets one.
    """

    async def hear() -> None:
        await silence.lasts(seconds)
        reached.set_result(None)

    if seconds <= 0:
        yield
    else:
        # No silence can be long enough before that.
        with run_beside(hear, after_seconds=seconds, name="job silence"):
            yield
