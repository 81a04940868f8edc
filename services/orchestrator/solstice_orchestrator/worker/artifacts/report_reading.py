"""Read the test reports that a job has left, in a process of their own.

The walk through the workspace is that of artifacts. What was found is parsed in a child process with little memory and time
(`reports/__main__.py`): a hostile file ends that, and nothing else.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import ArtifactSpec, JobSpec, Outcome, Reason, ReportSpec
from solstice_orchestrator.domain.trust import is_trusted
from solstice_orchestrator.processes.children import exit_code, pipe_reader, start, wait_for_exit
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.reports.reduction import counted, joined, problem_report
from solstice_orchestrator.reports.status_tests import status_tests
from solstice_orchestrator.reports.values import JobReport, decode_report
from solstice_orchestrator.store.records.report_records import RecordReport, ReportRecord
from solstice_orchestrator.worker.artifacts.collecting import collect
from solstice_orchestrator.worker.artifacts.sources import ArtifactSource, NotCollected

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of the files of one `report`."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of what the child writes; most are the results, 13 bytes a test, as base64."""
READING_SECONDS: Final = 60.0
AT_ONCE: Final = 4
"""Children of one orchestrator."""
COMMAND: Final = (sys.executable, "-I", "-m", "solstice_orchestrator.reports")
_LIMIT_WORDS: Final = "which the files of a report may have together"


_READ: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT})
_UNREACHABLE: Final = "test reports are not read from virtual machines"
_MAX_DETAIL: Final = 1000


class ReportingExecution(Protocol):
    """What is asked of an execution; it is that of `executors/protocol.py`."""

    @property
    def spec(self) -> JobSpec: ...

    @property
    def request(self) -> JobRequestV1: ...

    @property
    def record_report(self) -> RecordReport: ...

    @property
    def masked_report(self) -> Callable[[JobReport], JobReport]: ...


@dataclass(frozen=True, slots=True)
class ReportReading:
    """Reads reports, few at a time."""

    seconds: float = READING_SECONDS
    command: Sequence[str] = COMMAND
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def keep(
        self,
        execution: ReportingExecution,
        source: ArtifactSource | None,
        roots: Sequence[str],
        outcome: Outcome,
        *,
        remark: Callable[[str], Awaitable[None]],
        stop: asyncio.Event,
    ) -> Outcome:
        """Read and record the reports of a job, and return its outcome with their counts.

        `source` is None where files of jobs cannot be reached. The outcome is another one only where the job requires a report.
        """
        specs = execution.spec.reports
        if not specs or outcome.state not in _READ or stop.is_set():
            return outcome
        reports, unusable = list[JobReport](), ""
        for spec in specs:
            report = (
                problem_report(f"{spec.path}: {_UNREACHABLE}")
                if source is None
                else await self.read(source, spec, roots, stop)
            )
            if report is None:
                return outcome
            if not report.counts.total and not report.problems:
                report = problem_report(f"{spec.path}: its files have no test")
            for problem in report.problems:
                await remark(f"test report: {problem}")
            if spec.required and report.problems:
                unusable = unusable or f"test report {report.problems[0]}"
            reports.append(report)
        together = reports[0] if len(reports) == 1 else await asyncio.to_thread(joined, reports)
        together = execution.masked_report(together)
        if together.counts.total:
            await remark(f"test report: {counted(together.counts)}")
            outcome = replace(outcome, tests=status_tests(together))
        record = ReportRecord(
            report=together, commit_sha=execution.request.commit_sha, trusted=is_trusted(execution.request)
        )
        try:
            # Whether the attempt is still current does not matter here: its outcome has the same fence.
            await execution.record_report(record)
        except StoreUnavailable as error:
            await remark(f"test report: it could not be recorded: {error}")
        if unusable and outcome.state is JobState.SUCCEEDED:
            return replace(
                outcome,
                state=JobState.FAILED,
                reason=Reason.REPORT_UNUSABLE,
                detail=unusable[:_MAX_DETAIL],
                exit_code=None,
            )
        return outcome

    async def read(
        self, source: ArtifactSource, spec: ReportSpec, roots: Sequence[str], stop: asyncio.Event
    ) -> JobReport | None:
        """Return what the files say.

        What is wrong with them is a problem of the report.
        None: the job was asked to end meanwhile. Raises nothing but CancelledError.
        """
        ended = asyncio.Event()
        async with self._free:
            reading = asyncio.create_task(
                self._read(source, spec, roots, ended.is_set), name=f"report {spec.path}"
            )
            stopping = asyncio.create_task(stop.wait(), name="report stop")
            try:
                await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    return None
                return reading.result()
            except (OSError, RuntimeError, msgspec.MsgspecError) as error:
                return problem_report(f"{spec.path}: it could not be read: {error}")
            finally:
                # The thread that reads files looks at it; else its end would be waited for.
                ended.set()
                for task in (reading, stopping):
                    task.cancel()
                await run_to_completion(_ended(reading, stopping), "end of a report")

    async def _read(
        self, source: ArtifactSource, spec: ReportSpec, roots: Sequence[str], is_ended: Callable[[], bool]
    ) -> JobReport:
        with tempfile.TemporaryFile() as file:
            found = await run_to_completion(
                asyncio.to_thread(
                    collect,
                    source,
                    ArtifactSpec(name=spec.format, path=spec.path),
                    file,
                    most_bytes=MAX_BYTES,
                    room_bytes=MAX_BYTES,
                    is_ended=is_ended,
                    limit_words=_LIMIT_WORDS,
                ),
                f"files of {spec.path}",
            )
            if isinstance(found, NotCollected):
                return problem_report(f"{spec.path}: {found.detail}")
            file.seek(0)
            return await self._parsed(file, spec, roots)

    async def _parsed(self, file: IO[bytes], spec: ReportSpec, roots: Sequence[str]) -> JobReport:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
        process = start(
            (*self.command, *roots),
            Path("/"),
            environment,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            with pipe_reader(process.stdout) as output:
                try:
                    async with asyncio.timeout(self.seconds):
                        answer = await _all_of(output)
                        # One that writes too much is killed, and not waited for.
                        code = None if answer is None else await exit_code(process)
                except TimeoutError:
                    return problem_report(f"{spec.path}: reading it takes longer than {self.seconds:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await wait_for_exit(process)
        if answer is None or code != 0:
            return problem_report(f"{spec.path}: reading it takes too much time or memory")
        return decode_report(answer)


async def _all_of(output: asyncio.StreamReader) -> bytes | None:
    """Return all that the child writes; None when that is too much."""
    pieces = bytearray()
    while piece := await output.read(64 * 1024):
        pieces += piece
        if len(pieces) > MAX_ANSWER_BYTES:
            return None
    return bytes(pieces)


async def _ended(*tasks: "asyncio.Task[object]") -> None:
    await asyncio.wait(tasks)
