"""An orchestrator whose jobs of one label are simulated by the test: thousands of them, each recording its attempt.

Run by `tests.chaos.attempt_records.AttemptRecords.orchestrator` in place of `orchestrator run`; everything but the executor is the real
thing, and jobs of other labels are real processes.
"""

import asyncio
import functools
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from solstice_common.messages.states import JobState
from solstice_orchestrator import cli, opening
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors import make_executor
from solstice_orchestrator.worker.executors.protocol import Execution, Executor, LogWriter

SIMULATED_LABEL = "simulated"
"""The label of simulated jobs."""
SUCCEEDED = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingExecutor:
    """Writes down that an attempt begins and that it is done; in between it works, or waits at a shut gate."""

    processes: Executor
    record: Path
    gate: Path
    isolates: bool = False

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        if execution.spec.runs_on != SIMULATED_LABEL:
            return await self.processes.run(execution, log, stop)
        self._record_event("begun", execution)
        await log(b"simulated\n")
        await asyncio.sleep(random.uniform(0.1, 0.6))
        while self.gate.exists():
            self._record_event("waits", execution)
            await asyncio.sleep(0.1)
        self._record_event("done", execution)
        return SUCCEEDED

    def _record_event(self, event: str, execution: Execution) -> None:
        line = (
            f"{event} {execution.job_id} {execution.attempt} {datetime.now(UTC).timestamp():.6f}\n".encode()
        )
        file = os.open(self.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # One write to a file opened for appending: lines of several processes do not mix.
            os.write(file, line)
        finally:
            os.close(file)


def main() -> None:
    """`orchestrator`, with a recording executor."""

    @functools.wraps(make_executor)
    def with_recording_executor(*arguments: object, **named: object) -> RecordingExecutor:
        processes = make_executor(*arguments, **named)  # type: ignore[arg-type]  # make_executor's own arguments, passed on unread
        directory = Path(os.environ["RECORDING_DIRECTORY"])
        return RecordingExecutor(processes=processes, record=directory / "record", gate=directory / "shut")

    # By name: the module does not export what it imports.
    vars(opening)["make_executor"] = with_recording_executor
    cli.main()
