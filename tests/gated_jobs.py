"""Jobs that record their attempts, and wait while a test keeps their gate shut.

Real orchestrators run them; the test reads their records, and their results in a shared store.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from solstice_common.broker import Message, open_broker
from solstice_common.messages.states import JobState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.views import JobView
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.orchestrator import SharedFiles

WAIT_SECONDS: Final = 90
WORK: Final = "bash .solstice/work.sh"
"""The command of a job that records `begun`, `waits` while the gate is shut, and `done`; `WORK begun` records one event."""
SCRIPT: Final = """\
commit=$(git rev-parse HEAD)
record() {{ echo "$1 $SOLSTICE_JOB_ID $SOLSTICE_ATTEMPT $EPOCHREALTIME $commit" >>'{records}'; }}
[ $# = 0 ] || {{ record "$1"; exit; }}
record begun
echo it runs
while [ -e '{gate}' ]; do record waits; sleep 0.1; done
echo it ends
record done
"""
"""Each line is one write to a file opened for appending: lines of jobs that run at once do not mix."""


class AttemptRecord(NamedTuple):
    """One record of an attempt: `begun`, `waits` or `done`, its time and its commit.

    The time is in seconds since the epoch.
    """

    event: str
    job_id: str
    attempt: int
    at: float
    commit: str

    @property
    def key(self) -> tuple[str, int]:
        """The job's id and the number of the attempt."""
        return self.job_id, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedJobs:
    """The file that every attempt writes to, and the gate before its end."""

    directory: Path

    @property
    def gate(self) -> Path:
        """The gate is shut while this file exists."""
        return self.directory / "shut"

    @property
    def _file(self) -> Path:
        return self.directory / "records"

    def repository(
        self, name: str, files: dict[str, str], *, commits: int = 1
    ) -> tuple[Repository, Sequence[str]]:
        """Make a repository that may run `WORK`, with so many commits, oldest first."""
        made = Repository(self.directory / name)
        script = SCRIPT.format(records=self._file, gate=self.gate)
        ids = [made.commit({**files, ".solstice/work.sh": script})]
        tree = made.git("rev-parse", "HEAD^{tree}")
        while len(ids) < commits:
            ids.append(made.git("commit-tree", tree, "-p", ids[-1], "-m", f"Change {len(ids)}"))
        made.git("update-ref", "refs/heads/main", ids[-1])
        return made, ids

    def close_gate(self) -> None:
        """From now on no attempt ends."""
        self.gate.touch()

    def open_gate(self) -> None:
        """Let attempts end again."""
        self.gate.unlink()

    def record(self, event: str, job_id: str, attempt: int, commit: str) -> None:
        """Write the record that the script would write, for a job without processes."""
        line = f"{event} {job_id} {attempt} {datetime.now(UTC).timestamp():.6f} {commit}\n".encode()
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def records(self, event: str | None = None) -> Sequence[AttemptRecord]:
        """The records in order; an incomplete line is left out."""
        if not self._file.exists():
            return ()
        whole = self._file.read_text().rpartition("\n")[0]
        parts = [line.split() for line in whole.splitlines()]
        found = [
            AttemptRecord(kind, job_id, int(attempt), float(at), commit)
            for kind, job_id, attempt, at, commit in parts
        ]
        return [record for record in found if event in {None, record.event}]

    def attempts(self, event: str) -> set[tuple[str, int]]:
        """The attempts that got so far."""
        return {record.key for record in self.records(event)}

    def done_counts(self) -> Counter[str]:
        """How often each job came to its end."""
        return Counter(record.job_id for record in self.records("done"))


class Commit:
    """A commit to ask for; the name of its repository tells one from another."""

    def __init__(self, repository: Repository, commit: str, name: str | None = None) -> None:
        self.repository, self.commit, self.name = repository, commit, name


class GatedJob(Commit):
    """A commit whose jobs wait at a gate, which is shut at first.

    `workflow` replaces its only job, which runs `WORK`.
    """

    def __init__(self, directory: Path, workflow: str = "") -> None:
        self.jobs = GatedJobs(directory=directory)
        self.jobs.close_gate()
        files = {".solstice/workflow.kdl": workflow} if workflow else {".solstice/job.sh": WORK}
        repository, (commit,) = self.jobs.repository("repository", files)
        super().__init__(repository, commit)

    def open_gate(self) -> None:
        self.jobs.open_gate()

    @property
    def begun(self) -> int:
        """How many attempts have begun."""
        return len(self.jobs.records("begun"))


async def publish_requests(
    shared_files: SharedFiles, commit_to_build: Commit, count: int = 1, **fields: Any
) -> None:
    settings = BrokerSettings(amqp_url=shared_files.broker_url)
    route = jobs_route(settings)
    async with open_broker(shared_files.broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(full_topology(settings))
        bodies = [
            job_request(
                repo_url=commit_to_build.repository.url,
                commit_sha=commit_to_build.commit,
                ref=None,
                **({"repo_full_name": commit_to_build.name} if commit_to_build.name else {}),
                **fields,
            ).encode()
            for _ in range(count)
        ]
        outcomes = await broker.publish(
            [
                Message(
                    exchange=route.exchange, routing_key=route.routing_key, body=body, type="jobrequest.v1"
                )
                for body in bodies
            ]
        )
        assert all(outcome.confirmed for outcome in outcomes)


async def wait_for_jobs(store: JobStore, condition: Callable[[Sequence[JobView]], bool]) -> Sequence[JobView]:
    """Wait until the jobs are as expected; return them."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while True:
            changed.clear()
            views = await store.jobs(limit=100)
            if condition(views):
                return views
            try:
                async with asyncio.timeout(1):
                    await changed.wait()
            except TimeoutError:
                continue


async def wait_until_running(store: JobStore) -> JobView:
    """The only job, once it has written its first output."""
    (view,) = await wait_for_jobs(store, lambda views: [view.state for view in views] == [JobState.RUNNING])
    await wait_for_log(store, view.job_id, b"it runs")
    return view


async def wait_for_log(store: JobStore, job_id: str, words: bytes) -> None:
    """Wait until the log of the job has this text."""
    async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
        while words not in await read_log(store, job_id):
            changed.clear()
            try:
                async with asyncio.timeout(1):
                    await changed.wait()
            except TimeoutError:
                continue


async def read_log(store: JobStore, job_id: str) -> bytes:
    page = await store.log(job_id)
    return b"" if page is None else b"".join(chunk.data for chunk in page.chunks)


def all_ended(views: Sequence[JobView]) -> bool:
    return bool(views) and all(view.state.final for view in views)
