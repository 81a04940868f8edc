"""Jobs that write down what they do, and wait at a gate while a test keeps it shut."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.repositories import Repository

WORK: Final = """\
commit=$(git rev-parse HEAD)
say() {{ echo "$1 $SOLSTICE_JOB_ID $SOLSTICE_ATTEMPT $commit" >>'{record}'; }}
say begun
if [ -e '{gate}' ]; then
    say waits
    while [ -e '{gate}' ]; do sleep 0.05; done
fi
say done
"""
"""Each line is one write to a file opened for appending: lines of jobs that run at once do not mix."""


class RecordEntry(NamedTuple):
    """`begun`, `waits` or `done`: of one attempt at a job, with the commit that it found checked out."""

    event: str
    job_id: str
    attempt: str
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What every job of a test writes to, and the gate before its end."""

    directory: Path

    @property
    def _record(self) -> Path:
        return self.directory / "record"

    @property
    def _gate(self) -> Path:
        return self.directory / "shut"

    def repository(self, name: str, workflow: str, commits: int) -> tuple[Repository, Sequence[str]]:
        """A repository whose `workflow` may run `sh .solstice/work.sh`, and so many commits of it, oldest first."""
        made = Repository(self.directory / name)
        script = WORK.format(record=self._record, gate=self._gate)
        newest = made.commit({".solstice/workflow.kdl": workflow, ".solstice/work.sh": script})
        tree, ids = made.git("rev-parse", "HEAD^{tree}"), [newest]
        while len(ids) < commits:
            ids.append(made.git("commit-tree", tree, "-p", ids[-1], "-m", f"Change {len(ids)}"))
        made.git("update-ref", "refs/heads/main", ids[-1])
        return made, ids

    def close_gate(self) -> None:
        """From now on no job ends."""
        self._gate.touch()

    def open_gate(self) -> None:
        """Let jobs end again."""
        self._gate.unlink()

    def entries(self, event: str) -> list[RecordEntry]:
        """What was written, in order."""
        if not self._record.exists():
            return []
        found = [RecordEntry(*line.split()) for line in self._record.read_text().splitlines()]
        return [entry for entry in found if entry.event == event]

    def attempts(self, event: str) -> set[tuple[str, int]]:
        """The attempts that got so far."""
        return {(entry.job_id, int(entry.attempt)) for entry in self.entries(event)}

    def done_counts(self) -> Counter[str]:
        """How often each job came to its end."""
        return Counter(entry.job_id for entry in self.entries("done"))
