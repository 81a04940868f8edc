"""Runs become jobs: a real store, real repositories, and planning's loop between them."""

import asyncio
import errno
import random
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC, JobSpec, Reason, RunSpec
from solstice_orchestrator.git import commit_files
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_group import FilesOrFailure, FilesRequest, SingleFetch, fetch_group
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.stages import planning
from solstice_orchestrator.stages.early_fetches import EarlyFetches
from solstice_orchestrator.stages.planning import run_planning
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import Admitted, PlanningTask
from solstice_orchestrator.store.views import RunView
from solstice_orchestrator.superseding.push_order import CommitAncestry, OrderAnswers, OrderQuestion
from solstice_orchestrator.worker.execution import execute
from solstice_orchestrator.worker.executors import make_executor
from solstice_orchestrator.worker.pressure import Governor
from solstice_orchestrator.worker.workspaces import open_workspaces
from solstice_orchestrator.workflow.job_plan import PlanningRules, plan_jobs
from tests.builders import job_request
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.stream_server import stream_server
from tests.stores import retries_after, wait_for_stored

WORKFLOW = """
job "lint" { step run="test -f hello" }
job "test" runs-on="big" { needs "lint"; step run="cat hello" }
"""

DOWN = StoreUnavailable("test", "it is down")


@dataclass(frozen=True, kw_only=True)
class PlanningSetup:
    store: JobStore
    repository: Repository
    scratch: Path

    def commit(self, files: Mapping[str, str], **changes: Any) -> JobRequestV1:
        sha = self.repository.commit(files)
        return job_request(**{"repo_url": self.repository.url, "commit_sha": sha, **changes})

    async def admit(self, request: JobRequestV1) -> str:
        (admission,) = await self.store.admit([request])
        assert isinstance(admission, Admitted)
        return admission.run_id

    async def planned(self, run_id: str) -> RunView:
        """The run, once it is planned or never will be."""
        return await self.until(run_id, lambda run: run.state is not RunState.PLANNING)

    async def until(self, run_id: str, condition: Callable[[RunView], bool]) -> RunView:
        """The run, once it is as expected."""
        run = await wait_for_stored(
            self.store, lambda: self.store.run(run_id), lambda run: run is not None and condition(run)
        )
        assert run is not None
        return run

    @asynccontextmanager
    async def planning(self, **changes: Any) -> AsyncIterator[None]:
        """Planning's loop, running."""
        arguments: dict[str, Any] = {
            "store": self.store,
            "worker_id": "here",
            "git": GitPolicy(protocols=("file",)),
            "scratch": self.scratch,
            "rules": PlanningRules(),
            **changes,
        }
        loop = asyncio.ensure_future(run_planning(**arguments))
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.wait([loop])
            assert loop.cancelled()


@pytest.fixture
async def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlanningSetup]:
    monkeypatch.setattr(planning, "LAG_SECONDS", (0.01, 0.01))
    async with open_store(
        f"sqlite:///{tmp_path}/store.sqlite3", rng=random.Random(7), retries=retries_after(0.0)
    ) as store:
        yield PlanningSetup(
            store=store, repository=Repository(tmp_path / "repository"), scratch=tmp_path / "scratch"
        )


async def test_a_run_becomes_the_jobs_of_its_workflow(setup: PlanningSetup) -> None:
    request = setup.commit({".solstice/workflow.kdl": WORKFLOW, "hello": "x"}, priority="high")
    async with setup.planning():
        run_id = await setup.admit(request)
        assert (await setup.planned(run_id)).state is RunState.WAITING
    jobs = await setup.store.jobs(run_id=run_id, limit=10)
    assert [(job.name, job.state, job.runs_on, job.needs, job.priority.value) for job in jobs] == [
        ("lint", JobState.WAITING, "linux", (), "high"),
        ("test", JobState.BLOCKED, "big", ("lint",), "high"),
    ]


async def test_runs_that_waited_before_planning_began_are_planned(setup: PlanningSetup) -> None:
    runs = [await setup.admit(setup.commit({".solstice/job.sh": f"echo {n}"})) for n in range(5)]
    async with setup.planning(concurrency=2):
        for run_id in runs:
            assert (await setup.planned(run_id)).state is RunState.WAITING


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        (
            {".solstice/workflow.kdl": 'job "a" {\n  step\n}'},
            {},
            "workflow.kdl: line 2, column 3: a step needs",
        ),
        ({"README": "x"}, {}, "neither .solstice/workflow.kdl nor .solstice/job.sh"),
        ({"README": "x"}, {"workflow_path": "ci.kdl"}, "no file ci.kdl"),
        ({"README": "x"}, {"commit_sha": "1" * 40}, "is not (or no longer) in"),
        ({"README": "x"}, {"repo_url": "https://forge.example/x/y"}, "GIT_PROTOCOLS allows file"),
        ({".solstice/job.sh": "x"}, {"trusted": False}, "UNTRUSTED_RUNS"),
    ],
    ids=["bad workflow", "no workflow", "no such path", "no such commit", "protocol", "a stranger's"],
)
async def test_what_never_can_be_planned_ends_its_run_with_a_reason(
    setup: PlanningSetup, files: Mapping[str, str], changes: Mapping[str, str], words: str
) -> None:
    async with setup.planning():
        run = await setup.planned(await setup.admit(setup.commit(files, **changes)))
    assert run.state is RunState.ERRORED
    assert words in run.detail


async def test_a_commit_that_appears_a_little_later_is_planned(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A forge may announce a push before its last replica has it.
    monkeypatch.setattr(planning, "LAG_SECONDS", (0.2,) * 100)
    request = setup.commit({".solstice/job.sh": "x"})
    objects = setup.repository.path / ".git"
    hidden = setup.repository.path / "hidden"
    objects.rename(hidden)
    setup.repository.git("init", "--quiet")
    empty = setup.repository.path / ".git"
    async with setup.planning():
        run_id = await setup.admit(request)
        scratch = setup.scratch
        async with asyncio.timeout(20):
            while not (scratch.exists() and list(scratch.iterdir())):  # noqa: ASYNC110  git sends no notification
                await asyncio.sleep(0.01)
        empty.rename(setup.repository.path / "empty")
        hidden.rename(objects)
        assert (await setup.planned(run_id)).state is RunState.WAITING


async def test_a_run_whose_planning_is_cut_short_is_handed_back(setup: PlanningSetup) -> None:
    stranger = asyncio.Event()

    async def never_answer(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        stranger.set()
        await asyncio.Event().wait()

    async with stream_server(never_answer) as port:
        request = setup.commit({}, repo_url=f"http://127.0.0.1:{port}/harbour")
        async with setup.planning(git=GitPolicy(protocols=("http",))):
            run_id = await setup.admit(request)
            await stranger.wait()
    run = await setup.store.run(run_id)
    assert run is not None
    assert run.state is RunState.PLANNING
    (task,) = await setup.store.claim_planning("another", 5)
    assert task.run_id == run_id


class FailingStore:
    """A store whose next claims fail."""

    def __init__(self, store: JobStore, failures: int, error: Exception = DOWN) -> None:
        self._store, self.failures, self._error = store, failures, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
        if self.failures:
            self.failures -= 1
            raise self._error
        return await self._store.claim_planning(worker_id, limit)


@pytest.mark.parametrize("error", [DOWN, LookupError("a mistake")], ids=["store down", "mistake"])
async def test_planning_goes_on_after_claims_that_failed(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(planning, "POLL_SECONDS", 0.01)
    failing_store = FailingStore(setup.store, failures=5, error=error)
    run_id = await setup.admit(setup.commit({".solstice/job.sh": "x"}))
    async with setup.planning(store=failing_store, concurrency=1):
        assert (await setup.planned(run_id)).state is RunState.WAITING
    assert failing_store.failures == 0


async def test_a_run_that_breaks_us_takes_no_other_with_it(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_on_one(
        request: JobRequestV1, files: Mapping[str, bytes], rules: PlanningRules, **options: bool
    ) -> Any:
        if request.sender == "breaker":
            raise RecursionError("a mistake")
        return plan_jobs(request, files, rules, **options)

    monkeypatch.setattr(planning, "plan_jobs", break_on_one)
    sound = setup.commit({".solstice/job.sh": "x"})
    async with setup.planning(concurrency=1):
        breaking = await setup.admit(
            sound.model_copy(update={"request_id": str(uuid.uuid4()), "sender": "breaker"})
        )
        run_id = await setup.admit(sound)
        assert (await setup.planned(run_id)).state is RunState.WAITING
        run = await setup.until(breaking, lambda run: run.state.final)
    assert run.state is RunState.ERRORED
    assert "RecursionError: a mistake" in run.detail


async def test_the_log_says_whether_a_failure_of_the_machine_was_stored(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "POLL_SECONDS", 0.01)

    class Forgetting(FailingStore):
        """Does not take the first failures."""

        async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("test", "the disk is full")
            return await self._store.not_planned(task, reason, detail)

        async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
            return await self._store.claim_planning(worker_id, limit)

    def without_disk(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(planning, "plan_jobs", without_disk)
    for stored in (False, True):
        await setup.admit(setup.commit({".solstice/job.sh": str(stored)}))
        with capture_logs() as events:
            async with setup.planning(store=Forgetting(setup.store, failures=not stored)):
                await wait_until(lambda: LogEvent.RUN_NOT_PLANNED in {each["event"] for each in events})
        first = next(each for each in events if each["event"] == LogEvent.RUN_NOT_PLANNED)
        assert (first["reason"], first["stored"]) == (Reason.MACHINE_FAILED, stored)


async def test_runs_that_were_claimed_as_planning_ended_are_handed_back(setup: PlanningSetup) -> None:
    called, answer = asyncio.Event(), asyncio.Event()

    class Slow(FailingStore):
        """Claims, and answers late."""

        async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
            claimed = await super().claim_planning(worker_id, limit)
            called.set()
            await answer.wait()
            return claimed

    run_id = await setup.admit(setup.commit({".solstice/job.sh": "x"}))
    async with setup.planning(store=Slow(setup.store, failures=0)):
        await called.wait()
        asyncio.get_running_loop().call_soon(answer.set)
    (task,) = await setup.store.claim_planning("another", 5)
    assert task.run_id == run_id


async def test_runs_that_were_claimed_and_whose_claim_was_never_answered_are_planned_soon(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "POLL_SECONDS", 0.01)

    class Breaking(FailingStore):
        """Loses its connection as it commits the first claim."""

        async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
            claimed = await self._store.claim_planning(worker_id, limit)
            if claimed and self.failures:
                self.failures -= 1
                raise StoreUnavailable("test", "the connection was lost")
            return claimed

    run_id = await setup.admit(setup.commit({".solstice/job.sh": "x"}))
    breaking = Breaking(setup.store, failures=1)
    async with setup.planning(store=breaking):
        assert (await setup.planned(run_id)).state is RunState.WAITING
    assert breaking.failures == 0


async def test_a_plan_is_kept_however_the_store_stumbles_over_it(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "POLL_SECONDS", 0.01)

    class RefusingFirstPlans(FailingStore):
        """Does not take the first plans."""

        async def planned(
            self,
            task: PlanningTask,
            jobs: Sequence[JobSpec],
            run: RunSpec = DEFAULT_RUN_SPEC,
            answers: OrderAnswers | None = None,
        ) -> bool | OrderQuestion:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("test", "the disk is full")
            return await self._store.planned(task, jobs, run, answers)

        async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
            return await self._store.claim_planning(worker_id, limit)

    run_id = await setup.admit(setup.commit({".solstice/job.sh": "x"}))
    async with setup.planning(store=RefusingFirstPlans(setup.store, failures=2)):
        assert (await setup.planned(run_id)).state is RunState.WAITING


async def test_a_commit_goes_from_request_to_log_and_result(setup: PlanningSetup, tmp_path: Path) -> None:
    request = setup.commit({".solstice/workflow.kdl": WORKFLOW, "hello": "hello from the commit\n"})
    async with setup.planning(), open_workspaces(tmp_path / "work") as workspaces:
        executor = make_executor("process", workspaces=workspaces, git=GitPolicy(protocols=("file",)))
        run_id = await setup.admit(request)
        await setup.planned(run_id)
        for _ in range(2):
            (claim,) = await setup.store.claim("here", {"linux": 1, "big": 1}, 5)
            await execute(claim, store=setup.store, executor=executor, stop=asyncio.Event())
    run = await setup.store.run(run_id)
    assert run is not None
    assert run.state is RunState.SUCCEEDED
    test = (await setup.store.jobs(run_id=run_id, limit=5))[1]
    page = await setup.store.log(test.job_id)
    assert page is not None
    assert b"".join(chunk.data for chunk in page.chunks).endswith(b"$ step 1\nhello from the commit\n")


def pushes_of_spring(setup: PlanningSetup, count: int) -> list[JobRequestV1]:
    """Pushes without their time and with missing links between them."""
    setup.repository.git("checkout", "--quiet", "-b", "spring")
    made = [setup.commit({".solstice/job.sh": f"echo {n}"}, ref="refs/heads/spring") for n in range(count)]
    return [made[0], *made[2:]]


async def test_an_older_push_that_comes_late_makes_way_for_the_newer_one(setup: PlanningSetup) -> None:
    oldest, newest = pushes_of_spring(setup, 3)
    async with setup.planning():
        first = await setup.admit(newest)
        assert (await setup.planned(first)).state is RunState.WAITING
        late = await setup.planned(await setup.admit(oldest))
        assert late.state is RunState.CANCELLED
        assert (await setup.planned(first)).state is RunState.WAITING
    (job,) = await setup.store.jobs(run_id=late.run_id, limit=9)
    assert job.detail == f"superseded by {first}"


async def test_an_older_push_makes_way_when_both_are_planned_together(setup: PlanningSetup) -> None:
    oldest, newest = pushes_of_spring(setup, 3)
    first, second = await setup.admit(newest), await setup.admit(oldest)
    async with setup.planning():
        await setup.until(second, lambda run: run.state is RunState.CANCELLED)
        await setup.until(first, lambda run: run.state is RunState.WAITING)


async def test_a_repository_that_cannot_be_asked_leaves_it_to_who_asked_last(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> CommitAncestry:
        raise CheckoutFailed(Reason.CHECKOUT_FAILED, "the forge is away")

    monkeypatch.setattr(planning, "ask_repository", away)
    oldest, newest = pushes_of_spring(setup, 3)
    async with setup.planning():
        first = await setup.admit(newest)
        await setup.planned(first)
        second = await setup.planned(await setup.admit(oldest))
        assert second.state is RunState.WAITING
        assert (await setup.planned(first)).state is RunState.CANCELLED


async def test_one_that_is_always_overtaken_is_planned_in_the_end(
    setup: PlanningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(FailingStore):
        """Asks another question each time."""

        async def planned(
            self,
            task: PlanningTask,
            jobs: Sequence[JobSpec],
            run: RunSpec = DEFAULT_RUN_SPEC,
            answers: OrderAnswers | None = None,
        ) -> bool | OrderQuestion:
            if answers is None:
                return await self._store.planned(task, jobs, run)
            return OrderQuestion(
                commit_sha=task.request.commit_sha, before_sha=None, newest_sha=f"{len(answers):040x}"
            )

        async def claim_planning(self, worker_id: str, limit: int) -> Sequence[PlanningTask]:
            return await self._store.claim_planning(worker_id, limit)

    run_id = await setup.admit(setup.commit({".solstice/job.sh": "x"}))
    async with setup.planning(store=Busy(setup.store, failures=0)):
        assert (await setup.planned(run_id)).state is RunState.WAITING


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits whose files have come."""
    seen: list[str] = []

    async def counted(
        lookups: Sequence[FilesRequest], **options: Any
    ) -> Sequence[FilesOrFailure | SingleFetch]:
        answers = await fetch_group(lookups, **options)
        seen.extend(lookup.request.commit_sha for lookup in lookups)
        return answers

    monkeypatch.setattr(commit_files, "fetch_group", counted)
    return seen


async def test_files_are_fetched_while_their_request_is_being_stored(
    setup: PlanningSetup, fetched: list[str]
) -> None:
    early = EarlyFetches()
    async with setup.planning(early=early):
        await setup.planned(await setup.admit(setup.commit({".solstice/job.sh": "x"})))
        request = setup.commit({".solstice/job.sh": "y"})
        early.begin([request])
        await wait_until(lambda: request.commit_sha in fetched)
        setup.repository.path.rename(setup.repository.path.with_name("gone"))
        assert (await setup.planned(await setup.admit(request))).state is RunState.WAITING
    assert len(fetched) == 2
    # Without planning, nothing is fetched.
    early.begin([request.model_copy(update={"commit_sha": "1" * 40})])
    assert len(fetched) == 2


async def test_an_early_fetch_that_fails_is_tried_again_by_planning(
    setup: PlanningSetup, fetched: list[str]
) -> None:
    early, moved = EarlyFetches(), setup.repository.path.with_name("moved")
    async with setup.planning(early=early):
        await setup.planned(await setup.admit(setup.commit({".solstice/job.sh": "x"})))
        request = setup.commit({".solstice/job.sh": "y"})
        setup.repository.path.rename(moved)
        early.begin([request])
        await wait_until(lambda: request.commit_sha in fetched)
        moved.rename(setup.repository.path)
        assert (await setup.planned(await setup.admit(request))).state is RunState.WAITING


@pytest.mark.parametrize("kind", ["another repository", "untrusted", "delayed", "unfit machine"])
async def test_what_may_not_be_planned_now_is_not_fetched_early(
    kind: str, setup: PlanningSetup, fetched: list[str], tmp_path: Path
) -> None:
    class OneAtATime:
        """A governor after a failure of its machine."""

        def plannable(self, _most: int) -> int:
            return 1

        def machine_worked(self) -> None:
            pass

    early, other = EarlyFetches(), Repository(tmp_path / "other")
    governor = cast("Governor", OneAtATime()) if kind == "unfit machine" else None
    async with setup.planning(early=early, governor=governor):
        first = setup.commit({".solstice/job.sh": "x"})
        await setup.planned(await setup.admit(first))
        request = setup.commit({".solstice/job.sh": "y"})
        match kind:
            case "another repository":
                sha = other.commit({".solstice/job.sh": "z"})
                request = job_request(repo_url=other.url, commit_sha=sha)
            case "untrusted":
                request = request.model_copy(update={"trusted": False})
            case "delayed":
                request = request.model_copy(update={"not_before": "2999-01-31T12:00:00Z"})
        early.begin([request])
        # A fetch that had begun would be the first of these two.
        later = setup.commit({".solstice/job.sh": "last"})
        await setup.planned(await setup.admit(later))
    assert request.commit_sha not in fetched
