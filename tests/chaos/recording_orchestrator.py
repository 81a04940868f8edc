"""An orchestrator whose jobs of one label record their attempts instead of running.

There may be thousands of them.

`tests.chaos.cluster.Cluster.start` runs it in place of `orchestrator run`; everything but the executor is the real
thing, and jobs of other labels are real processes.
"""

import asyncio
import functools
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator import cli
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.opening import factories
from solstice_orchestrator.worker.executors import make_executor
from solstice_orchestrator.worker.executors.protocol import Execution, Executor, LogWriter
from tests.gated_jobs import GatedJobs

SIMULATED_LABEL = "simulated"
"""The label of simulated jobs."""
ROOT: Final = Path(__file__).parent.parent.parent
START: Final = f"""
import os, sys, time
true_time, skew = time.time, float(os.environ["SKEW_SECONDS"])
time.time = lambda: true_time() + skew
sys.path.insert(0, {str(ROOT)!r})
from tests.chaos.recording_orchestrator import main
main()
"""
"""The clock is set wrong before anything of ours can look at it."""
SUCCEEDED = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingExecutor:
    """Records the begin and end of an attempt, which works or waits at a gate."""

    processes: Executor
    gated_jobs: GatedJobs
    isolates: bool = False

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        if execution.spec.runs_on != SIMULATED_LABEL:
            return await self.processes.run(execution, log, stop)
        self._record_event("begun", execution)
        await log(b"simulated\n")
        await asyncio.sleep(random.uniform(0.1, 0.6))
        while self.gated_jobs.gate.exists():
            self._record_event("waits", execution)
            await asyncio.sleep(0.1)
        self._record_event("done", execution)
        return SUCCEEDED

    def _record_event(self, event: str, execution: Execution) -> None:
        self.gated_jobs.record(event, execution.job_id, execution.attempt, execution.request.commit_sha)


def main() -> None:
    """`orchestrator`, with a recording executor."""

    @functools.wraps(make_executor)
    def with_recording_executor(*arguments: object, **named: object) -> RecordingExecutor:
        processes = make_executor(*arguments, **named)  # type: ignore[arg-type]  # make_executor's own arguments, passed on unread
        gated_jobs = GatedJobs(directory=Path(os.environ["RECORDING_DIRECTORY"]))
        return RecordingExecutor(processes=processes, gated_jobs=gated_jobs)

    # By name: the module does not export what it imports.
    names = vars(factories)
    assert names["make_executor"] is make_executor
    names["make_executor"] = with_recording_executor
    cli.main()
