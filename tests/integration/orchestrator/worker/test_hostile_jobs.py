"""Jobs that attack the orchestrator harm no job of another repository.

The whole service runs as an unprivileged user, as its jobs do; no other test has a process of this user.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.views import JobView
from tests.executor_harness import NEEDS_OTHER_USER, NEEDS_PROC, as_user
from tests.gated_jobs import Commit, all_ended, publish_requests, wait_for_jobs
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator

pytestmark = [NEEDS_PROC, NEEDS_OTHER_USER]


UID = 60_000 + os.getpid() % 5000


@dataclass(frozen=True, kw_only=True)
class FilesWithStore(SharedFiles):
    """Whose store is at `store_url`."""

    store_url: str

    @property
    def database_url(self) -> str:
        return self.store_url


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """A running orchestrator, and the repositories whose jobs it runs."""

    place: SharedFiles
    service: OrchestratorProcess
    store: JobStore

    async def run(self, script: str, *, props: str = "") -> JobView:
        """Run a job that may be hostile to its end."""
        return await self._run("hostile", f'job "hostile" {props} {{ step run=#"""\n{script}\n"""# }}')

    async def run_good(self) -> JobView:
        """Run a job of another repository to its end."""
        return await self._run("good", 'job "good" { step run="echo it runs > file; cat file" }')

    async def _run(self, name: str, workflow: str) -> JobView:
        before = {view.job_id for view in await self.store.jobs(limit=100)}
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.place.directory)) / "repository"
        commit = Repository(path).commit({".solstice/workflow.kdl": workflow})
        give_away(path.parent)
        made = Repository.__new__(Repository)
        made.path = path
        await publish_requests(self.place, Commit(made, commit, f"{name}/{name}"))
        views = await wait_for_jobs(
            self.store, lambda views: all_ended([view for view in views if view.job_id not in before])
        )
        (view,) = (view for view in views if view.job_id not in before)
        return view


def give_away(directory: Path) -> None:
    """Give the directory, and all below it, to the user."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[FilesWithStore]:
    """A directory of the user, and the URL of an empty store.

    It is outside of pytest's folders, which other users may not enter.
    """
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/store.db"
        if getattr(request, "param", "sqlite") == "postgresql":
            url = request.getfixturevalue("postgresql_database").url
        give_away(Path(name))
        yield FilesWithStore(directory=Path(name), store_url=url)


@asynccontextmanager
async def tenants_of(
    place: SharedFiles, limits: Sequence[str] = (), **settings: str
) -> AsyncIterator[Tenants]:
    """A running orchestrator, by a command that limits it."""
    before = (*limits, *as_user(UID))
    with orchestrator(place, before=before, HOME=str(place.directory), **settings) as service:
        async with open_store(place.database_url) as store:
            yield Tenants(place=place, service=service, store=store)


BOTH_STORES = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)

OWN = "W=$(dirname $SOLSTICE_WORKSPACE); D=$(dirname $W); cd /\n"
"""W: the job's workspace; D: the directory of all workspaces of its orchestrator."""
SPOILS = {
    "removed with WORKSPACES": 'rm -rf "$(dirname $D)"',
    "closed with WORKSPACES": 'chmod 000 "$D" "$(dirname $D)"',
    "a file": 'rm -rf "$D"; echo > "$D"',
    "closed to git": 'rm -rf "$D/git"; mkdir -m 0 "$D/git"',
}


async def test_jobs_of_others_run_after_a_job_that_spoils_the_directory_of_all_workspaces(
    place: FilesWithStore,
) -> None:
    async with tenants_of(place) as tenants:
        for spoils in SPOILS.values():
            assert (await tenants.run(OWN + spoils)).state is JobState.SUCCEEDED
            good = await tenants.run_good()
            assert (good.state, good.attempt) == (JobState.SUCCEEDED, 1)


TAKE_ALL = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        time.sleep(0.01)
"""


async def test_a_job_that_takes_all_processes_is_ended_and_jobs_of_others_run(place: FilesWithStore) -> None:
    limits = ("prlimit", "--nproc=200:200")
    async with tenants_of(place, limits, STOP_GRACE_SECONDS="0", CAPACITY_MAP="linux=2") as tenants:
        view = await tenants.run(f"exec python3 -c '{TAKE_ALL}'", props='timeout="20s"')
        assert (view.state, view.reason, view.attempt) == (JobState.FAILED, Reason.STEP_FAILED, 1)
        assert "hardly any more processes can be started here" in view.detail
        good = await tenants.run_good()
        assert (good.state, good.reason) == (JobState.SUCCEEDED, Reason.COMPLETED)
