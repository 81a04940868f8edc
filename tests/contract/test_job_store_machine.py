"""Random sequences of requests and jobs: the promises of the store always hold."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from solstice_common.messages import JobRequestV1, JobStatusV1, Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import (
    MAX_ATTEMPTS,
    OWN_FAILURES,
    Concurrency,
    GroupMode,
    JobCondition,
    Outcome,
    Reason,
    RunSpec,
    may_move,
    run_state,
)
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.postgresql.reading import listing
from solstice_orchestrator.store.protocol import (
    Admitted,
    AttemptKey,
    Claim,
    JobStore,
    LastChunks,
    OutboxKind,
    PlanningTask,
)
from solstice_orchestrator.store.views import AttemptView, JobView, LogChunk
from tests.builders import job, job_request
from tests.servers.postgresql import PostgreSQLServer
from tests.stores import CANCELLED, CHECKOUT_ERRORED, FAILED, RELEASED, SUCCEEDED, ManualClock, sqlite_store

T = TypeVar("T")

LEASE = 60.0
LABELS = ("linux", "illumos")
WORKERS = ("worker-a", "worker-b")
TIMED_OUT = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)
GRAPHS = (
    [()],
    [(), ("0",)],
    [(), (), ("0", "1")],
    [(), ("0",), ("1",), ("0",)],
)


GROUPS = st.one_of(
    st.none(), st.builds(Concurrency, group=st.sampled_from("xy"), mode=st.sampled_from(GroupMode))
)
BRANCHES = ("refs/heads/main", "refs/heads/spring")
ACTIVE = frozenset({JobState.WAITING, JobState.RUNNING, JobState.BACKOFF})


class StoreMachine(RuleBasedStateMachine):
    """A store, a moved clock, two workers, and the attempts that they believe they hold."""

    def __init__(self, fresh: Callable[[], AbstractContextManager[str]]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.place = ExitStack()
        self.stack = AsyncExitStack()
        url = self.place.enter_context(fresh())
        self.store: JobStore = self.do(
            lambda: self.stack.enter_async_context(
                open_store(url, clock=self.clock, rng=random.Random(1), lease_seconds=LEASE)
            )
        )
        self.requests: list[JobRequestV1] = []
        self.tasks: list[PlanningTask] = []
        self.claims: list[tuple[str, Claim]] = []
        self.statuses: list[JobStatusV1] = []
        self.dead_letters = 0
        self.budgets: dict[tuple[str, str], int] = {}
        """The authors' retries, by run and name of a job."""
        self.approved: set[str] = set()
        """Runs by id."""
        self.run_groups: dict[str, str] = {}
        self.job_groups: dict[tuple[str, str], str] = {}
        """By run, and name of a job."""
        self.ended: dict[tuple[str, int], AttemptView] = {}
        """Attempts as they were reported when they had ended."""

    def teardown(self) -> None:
        self.do(self.stack.aclose)
        self.runner.close()
        self.place.close()

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await work()

        return self.runner.run(awaited())

    # -- operations ----------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from([None, "x", "y"]), min_size=1, max_size=4),
        ref=st.sampled_from(BRANCHES),
        again=st.booleans(),
        word=st.sampled_from([{}, {}, {"needs_approval": True}, {"approves": True}]),
    )
    def admit(self, keys: list[str | None], ref: str, again: bool, word: dict[str, bool]) -> None:
        batch = [job_request(idempotency_key=key, ref=ref, **word) for key in keys]
        if again and self.requests:
            batch.append(self.requests[0])
        before = {run.request_id for run in self.runs()}
        admissions = self.do(lambda: self.store.admit(batch))
        after = {run.request_id for run in self.runs()}
        new = [
            request
            for request, admission in zip(batch, admissions, strict=True)
            if isinstance(admission, Admitted)
        ]
        assert after - before == {request.request_id for request in new}
        self.requests += new
        for request, admission in zip(batch, admissions, strict=True):
            found = self.do(lambda request=request: self.store.run_of_request(request.request_id))  # type: ignore[misc]  # mypy does not infer a lambda with a default
            assert found is not None
            assert found.run_id == admission.run_id

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def claim_planning(self, worker: str, limit: int) -> None:
        self.tasks += self.do(lambda: self.store.claim_planning(worker, limit))

    @precondition(lambda self: self.tasks)
    @rule(
        data=st.data(),
        graph=st.sampled_from(GRAPHS),
        timeout=st.sampled_from([None, LEASE, 1000.0]),
        group=GROUPS,
        keep=st.booleans(),
    )
    def plan(
        self,
        data: st.DataObject,
        graph: list[tuple[str, ...]],
        timeout: float | None,
        group: Concurrency | None,
        keep: bool,
    ) -> None:
        task = self.take(data, self.tasks, keep=keep)
        specs = [
            job(
                "true",
                name=str(number),
                needs=needs,
                runs_on=data.draw(st.sampled_from(LABELS)),
                priority=data.draw(st.sampled_from(Priority)),
                condition=data.draw(st.sampled_from(JobCondition)),
                retries=data.draw(st.integers(0, 2)),
                concurrency=data.draw(GROUPS),
            )
            for number, needs in enumerate(graph)
        ]
        run_spec = RunSpec(timeout_seconds=timeout, concurrency=group)
        if self.do(lambda: self.store.planned(task, specs, run_spec)):
            self.budgets |= {(task.run_id, spec.name): spec.retries for spec in specs}
            if group is not None:
                self.run_groups[task.run_id] = group.group
            self.job_groups |= {
                (task.run_id, spec.name): spec.concurrency.group for spec in specs if spec.concurrency
            }

    @rule(whole=st.booleans(), mode=st.sampled_from(GroupMode), ref=st.sampled_from(BRANCHES))
    def deploy(self, whole: bool, mode: GroupMode, ref: str) -> None:
        """Add a run that asks for a contested group."""
        request = job_request(ref=ref)
        self.requests.append(request)
        (admission,) = self.do(lambda: self.store.admit([request]))
        tasks = self.do(lambda: self.store.claim_planning(WORKERS[0], 100))
        self.tasks += [task for task in tasks if task.run_id != admission.run_id]
        (own,) = [task for task in tasks if task.run_id == admission.run_id]
        group = Concurrency(group="x", mode=mode)
        specs = [job("true", name="0", concurrency=None if whole else group)]
        assert self.do(lambda: self.store.planned(own, specs, RunSpec(concurrency=group if whole else None)))
        self.budgets[own.run_id, "0"] = 0
        if whole:
            self.run_groups[own.run_id] = "x"
        else:
            self.job_groups[own.run_id, "0"] = "x"

    @precondition(lambda self: self.tasks)
    @rule(
        data=st.data(),
        reason=st.sampled_from([Reason.INVALID_WORKFLOW, Reason.CHECKOUT_FAILED, Reason.RELEASED]),
        keep=st.booleans(),
    )
    def fail_to_plan(self, data: st.DataObject, reason: Reason, keep: bool) -> None:
        task = self.take(data, self.tasks, keep=keep)
        self.do(lambda: self.store.not_planned(task, reason, "so it goes"))

    @rule(
        worker=st.sampled_from(WORKERS),
        free=st.dictionaries(st.sampled_from(LABELS), st.integers(0, 3)),
        limit=st.integers(0, 4),
    )
    def claim(self, worker: str, free: dict[str, int], limit: int) -> None:
        waiting = {view.job_id for view in self.jobs() if view.state in {JobState.WAITING, JobState.BACKOFF}}
        claims = self.do(lambda: self.store.claim(worker, free, limit))
        assert len(claims) <= limit
        for label in LABELS:
            assert sum(claim.spec.runs_on == label for claim in claims) <= free.get(label, 0)
        assert {claim.key.job_id for claim in claims} <= waiting
        self.claims += [(worker, claim) for claim in claims]

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        outcome=st.sampled_from([SUCCEEDED, FAILED, CANCELLED, TIMED_OUT, RELEASED, CHECKOUT_ERRORED]),
        keep=st.booleans(),
    )
    def finish(self, data: st.DataObject, outcome: Outcome, keep: bool) -> None:
        _, claim = self.take(data, self.claims, keep=keep)
        before = self.everything()
        current = self.is_current(claim.key)
        logs = [LastChunks(chunks=[LogChunk(sequence=2, at=0.0, data=b"y")])]
        run_spec = self.do(lambda: self.store.finish(claim.key, outcome, logs))
        if current:
            assert run_spec
        else:
            assert self.everything() == before

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def write_log(self, data: st.DataObject) -> None:
        _, claim = self.take(data, self.claims, keep=True)
        line = LogChunk(sequence=1, at=0.0, data=b"x")
        assert self.do(lambda: self.store.append_log(claim.key, [line])) is self.is_current(claim.key)

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker: str) -> None:
        owned = [claim.key for holder, claim in self.claims if holder == worker]
        renewal = self.do(lambda: self.store.renew(worker, owned))
        assert not any(self.is_current(key) for key in renewal.lost)
        assert all(self.is_current(key) for key in renewal.cancelled)

    @rule()
    def rescue(self) -> None:
        running = {view.job_id for view in self.jobs() if view.state is JobState.RUNNING}
        rescued = self.do(self.store.rescue)
        assert {key.job_id for key in rescued} <= running

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel_a_run(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs()))
        self.do(lambda: self.store.cancel_run(run.run_id))

    @precondition(lambda self: self.jobs())
    @rule(data=st.data())
    def cancel_a_job(self, data: st.DataObject) -> None:
        view = data.draw(st.sampled_from(self.jobs()))
        self.do(lambda: self.store.cancel_job(view.job_id))

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def change_the_class_of_a_job(self, data: st.DataObject, priority: Priority) -> None:
        view = data.draw(st.sampled_from(self.jobs()))
        after = self.do(lambda: self.store.prioritise(view.job_id, priority))
        assert after == replace(view, priority=view.priority if view.state.final else priority)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def approve(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs()))
        before = {view.job_id: view.state for view in self.jobs()}
        approved = self.do(lambda: self.store.approve_run(run.run_id))
        assert approved is not None
        for view in self.jobs():
            if before[view.job_id] is JobState.APPROVAL:
                assert (view.state is JobState.APPROVAL) is (view.run_id != run.run_id)
        if JobState.APPROVAL not in {
            before[view.job_id] for view in self.jobs() if view.run_id == run.run_id
        }:
            assert {view.job_id: view.state for view in self.jobs()} == before
            return
        self.approved.add(run.run_id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def run_again(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs()))
        again = self.do(lambda: self.store.rerun(run.run_id))
        assert again is not None
        assert again.rerun_of == run.run_id

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE, 400.0]))
    def advance_clock(self, seconds: float) -> None:
        self.clock.forward(seconds)

    # -- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def every_transition_is_reported_in_order_and_follows_the_table(self) -> None:
        rows = self.do(lambda: self.store.outbox(10_000))
        self.do(lambda: self.store.published([row.number for row in rows]))
        self.dead_letters += sum(row.kind is OutboxKind.DEAD_LETTER for row in rows)
        self.statuses += [JobStatusV1.decode(row.body) for row in rows if row.kind is OutboxKind.STATUS]
        sequences: dict[str, int] = defaultdict(int)
        jobs: dict[str, JobState] = {}
        runs: dict[str, RunState] = {}
        for status in self.statuses:
            about = status.job_id or status.run_id
            assert status.sequence > sequences[about]
            sequences[about] = status.sequence
            if status.job_id is None:
                assert not (status.run_id in runs and runs[status.run_id].final)
                runs[status.run_id] = RunState(status.state)
            else:
                new, old = JobState(status.state), jobs.get(status.job_id)
                assert (old is None and new in {JobState.WAITING, JobState.BLOCKED, JobState.APPROVAL}) or (
                    old is not None and (may_move(old, new) or old is new is JobState.BLOCKED)
                )
                jobs[status.job_id] = new
        assert jobs == {view.job_id: view.state for view in self.jobs()}
        assert runs == {run.run_id: run.state for run in self.runs()}

    @invariant()
    def nothing_runs_before_its_approval(self) -> None:
        asking = {request.request_id for request in self.requests if request.needs_approval}
        for run in self.runs():
            if run.request_id in asking and run.run_id not in self.approved:
                states = {view.state for view in self.jobs() if view.run_id == run.run_id}
                ended = {JobState.CANCELLED, JobState.TIMED_OUT}
                assert states <= {JobState.APPROVAL, JobState.SKIPPED, *ended}

    @invariant()
    def a_run_is_what_its_jobs_amount_to(self) -> None:
        by_run: dict[str, list[JobView]] = defaultdict(list)
        for view in self.jobs():
            by_run[view.run_id].append(view)
        for run in self.runs():
            if run.run_id in by_run:
                assert run.state is run_state([view.state for view in by_run[run.run_id]])
            assert (run.finished_at is not None) == run.state.final

    @invariant()
    def a_list_of_one_state_holds_all_that_is_in_it(self) -> None:
        runs = self.runs()
        for state in RunState:
            found = self.do(lambda state=state: self.store.runs(limit=10_000, state=state)).runs  # type: ignore[misc]  # mypy does not infer a lambda with a default
            assert found == [run for run in runs if run.state is state]

    @invariant()
    def a_job_has_at_most_one_open_attempt_and_only_while_it_runs(self) -> None:
        for view in self.jobs():
            attempts = self.do(lambda view=view: self.store.attempts(view.job_id))  # type: ignore[misc]  # mypy does not infer a lambda with a default
            still_open = [attempt.number for attempt in attempts if attempt.finished_at is None]
            assert still_open == ([view.attempt] if view.state is JobState.RUNNING else [])
            assert [attempt.number for attempt in attempts] == list(range(1, view.attempt + 1))
            for attempt in attempts:
                if attempt.finished_at is not None:
                    assert self.ended.setdefault((view.job_id, attempt.number), attempt) == attempt
            spoiled = [
                attempt
                for attempt in attempts
                if attempt.reason in {Reason.CHECKOUT_FAILED, Reason.AGENT_LOST, Reason.LEASE_EXPIRED}
            ]
            assert len(spoiled) <= MAX_ATTEMPTS
            own = [attempt for attempt in attempts if attempt.reason in OWN_FAILURES]
            assert len(own) <= self.budgets[view.run_id, view.name] + 1

    @invariant()
    def nothing_waits_for_what_will_never_end(self) -> None:
        by_run: dict[str, dict[str, JobState]] = defaultdict(dict)
        for view in self.jobs():
            by_run[view.run_id][view.name] = view.state
        for view in self.jobs():
            if view.state is JobState.BLOCKED and view.reason is not Reason.CONCURRENCY_GROUP:
                assert not all(by_run[view.run_id][need].final for need in view.needs)

    @invariant()
    def no_group_has_two_holders(self) -> None:
        active = [view for view in self.jobs() if view.state in ACTIVE]
        runs = {view.run_id for view in active if view.run_id in self.run_groups}
        assert max(Counter(self.run_groups[run_id] for run_id in runs).values(), default=1) == 1
        keys = [(view.run_id, view.name) for view in active]
        jobs_of_groups = Counter(self.job_groups[key] for key in keys if key in self.job_groups)
        assert max(jobs_of_groups.values(), default=1) == 1

    @invariant()
    def blocked_jobs_wait_for_active_ones(self) -> None:
        states = {view.state for view in self.jobs()}
        assert JobState.BLOCKED not in states or states & ACTIVE

    @invariant()
    def of_one_branch_only_the_newest_push_goes_on(self) -> None:
        pushes = {
            run.run_id
            for run in self.runs()
            if run.ref == "refs/heads/spring" and run.rerun_of is None and not run.state.final
        }
        going_on = {
            view.run_id
            for view in self.jobs()
            if view.run_id in pushes and not view.state.final and view.state is not JobState.RUNNING
        }
        assert len(going_on) <= 1

    @invariant()
    def dead_letters_are_runs_that_the_world_spoiled(self) -> None:
        assert self.dead_letters <= sum(run.state is RunState.ERRORED for run in self.runs())

    # -- reading ------------------------------------------------------------------------------------

    def runs(self) -> list[Any]:
        return list(self.do(lambda: self.store.runs(limit=10_000)).runs)

    def jobs(self) -> list[JobView]:
        return list(self.do(lambda: self.store.jobs(limit=10_000)))

    def everything(self) -> list[Any]:
        return [self.runs(), self.jobs()]

    def is_current(self, key: AttemptKey) -> bool:
        view = self.do(lambda: self.store.job(key.job_id))
        return view is not None and view.state is JobState.RUNNING and view.attempt == key.number

    def take(self, data: st.DataObject, owned: list[T], *, keep: bool) -> T:
        """One of the claims that a worker believes to hold.

        A kept one is used again, too late.
        """
        index = data.draw(st.integers(0, len(owned) - 1))
        return owned[index] if keep else owned.pop(index)


def test_lives_in_a_sqlite_store() -> None:
    @contextmanager
    def new_store() -> Iterator[str]:
        with TemporaryDirectory() as folder:
            yield sqlite_store(Path(folder))

    run_state_machine_as_test(
        lambda: StoreMachine(new_store),  # type: ignore[arg-type]  # a factory is documented, its type says a class
        settings=settings(max_examples=25, stateful_step_count=30, deadline=None),
    )


def test_lives_in_a_postgresql_store(
    postgresql: PostgreSQLServer, store_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of these few runs, too, some are older than those that it looks through.
    monkeypatch.setattr(listing, "WALKED", 2)

    @contextmanager
    def postgresql_store() -> Iterator[str]:
        with postgresql.database(store_template) as database:
            yield database.url

    run_state_machine_as_test(
        lambda: StoreMachine(postgresql_store),  # type: ignore[arg-type]  # a factory is documented, its type says a class
        settings=settings(
            max_examples=10,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
