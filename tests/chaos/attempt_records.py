"""What the jobs of these tests leave behind, and the gate they wait at while it is shut."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.recording_orchestrator import SIMULATED_LABEL
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator

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
PROCESS_LABEL: Final = "process"
"""The label of jobs that are real processes."""
WORK: Final = """\
say() {{ echo "$1 $SOLSTICE_JOB_ID $SOLSTICE_ATTEMPT $EPOCHREALTIME" >>'{record}'; }}
say begun
sleep 0.3
while [ -e '{gate}' ]; do say waits; sleep 0.1; done
say done
"""


class AttemptRecord(NamedTuple):
    """`begun`, `waits` or `done`, by one attempt at a job, at a time in seconds since the epoch."""

    event: str
    job_id: str
    attempt: int
    at: float

    @property
    def key(self) -> tuple[str, int]:
        return self.job_id, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecords:
    """The file that every attempt writes to, and the gate before its end."""

    shared_files: SharedFiles

    @property
    def record(self) -> Path:
        return self.shared_files.directory / "record"

    @property
    def gate(self) -> Path:
        return self.shared_files.directory / "shut"

    def repository(self, name: str, *, simulated: int, processes: int) -> tuple[Repository, str]:
        """A repository, and its commit whose workflow has so many jobs of each label."""
        made = Repository(self.shared_files.directory / name)
        work = WORK.format(record=self.record, gate=self.gate)
        jobs = [
            f'job "simulated-{n}" runs-on="{SIMULATED_LABEL}" {{ step "write" run="simulated"; }}'
            for n in range(simulated)
        ]
        jobs += [
            f'job "process-{n}" runs-on="{PROCESS_LABEL}" {{ step "work" run="bash .solstice/work.sh"; }}'
            for n in range(processes)
        ]
        files = {".solstice/workflow.kdl": "\n".join(jobs), ".solstice/work.sh": work}
        return made, made.commit(files)

    def orchestrator(
        self, name: str, *, skew_seconds: float, **settings: str
    ) -> AbstractContextManager[OrchestratorProcess]:
        """An orchestrator of that name, with a recording executor, on a machine whose clock is so far ahead."""
        return orchestrator(
            self.shared_files,
            start=START,
            WORKER_NAME=name,
            RECORDING_DIRECTORY=str(self.shared_files.directory),
            SKEW_SECONDS=str(skew_seconds),
            **settings,
        )

    def close_gate(self) -> None:
        """From now on no attempt ends."""
        self.gate.touch()

    def open_gate(self) -> None:
        """Let everybody through."""
        self.gate.unlink()

    def all(self) -> Sequence[AttemptRecord]:
        """What was written, in order; a line that is being written is left out."""
        if not self.record.exists():
            return ()
        whole = self.record.read_text().rpartition("\n")[0]
        parts = [line.split() for line in whole.splitlines()]
        return [AttemptRecord(event, job_id, int(attempt), float(at)) for event, job_id, attempt, at in parts]
