"""Fetch the workflow file of each stored run at its commit, and plan its jobs."""

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.runtime.periodic import on_notification
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_ancestry import ask_repository
from solstice_orchestrator.git.commit_files import CommitFiles
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.changed_paths import changed_paths
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.stages.early_fetches import EarlyFetches
from solstice_orchestrator.store.protocol import JobStore, PlanningTask
from solstice_orchestrator.store.records.topics import StoreTopic
from solstice_orchestrator.superseding.push_order import OrderQuestion, PushOrder, answer
from solstice_orchestrator.worker.log_buffer import retry_while_unavailable
from solstice_orchestrator.worker.pressure import Governor
from solstice_orchestrator.workflow.conditions.facts import ChangedPaths
from solstice_orchestrator.workflow.job_plan import (
    PlannedJobs,
    PlanningRules,
    PlanRefused,
    WorkflowWithPaths,
    plan_jobs,
    untrusted,
    workflow_paths,
)

LOG = structlog.get_logger(__name__)

CONCURRENCY: Final = 64
"""Runs planned at once. Most wait for forges, and runs of one repository share a fetch."""
CLAIMED_AT_ONCE: Final = 16
POLL_SECONDS: Final = 5.0
"""How often the store is polled without a notification, and after it was unavailable."""
UNFIT_POLL_SECONDS: Final = 0.5
"""How often a machine that could not plan is checked again."""
NOT_TOO_SOON_SECONDS: Final = 0.01
"""The least pause before a delayed run. So a slow store clock causes no busy loop."""
LAG_SECONDS: Final = (1.0, 4.0)
"""Pauses before looking again for an absent commit.

A forge may announce a push before its last replica has it.
"""
MAX_QUESTIONS: Final = 5
"""How often a run asks which run is newer, when other runs are planned meanwhile."""
MAX_LOOKUPS: Final = 4
"""Repositories that are asked for the push order at once."""
HAND_BACK_SECONDS: Final = 5.0
"""How long, at the end, this orchestrator tries to hand unplanned runs back.

Later they are taken back when its heartbeat has expired.
"""


async def run_planning(
    *,
    store: JobStore,
    worker_id: str,
    git: GitPolicy,
    scratch: Path,
    rules: PlanningRules,
    concurrency: int = CONCURRENCY,
    governor: Governor | None = None,
    hosts: GitHosts | None = None,
    planned: PlannedCommits | None = None,
    early: EarlyFetches | None = None,
) -> None:
    """Plan waiting runs until cancelled; then hand back those under way.

    `governor` says whether this machine can plan at all, and learns when it could not; without it, it always can.
    `hosts` says which git hosts must be left alone, and learns how they answered. `planned` gets small commits, for their
    checkouts. `early` names requests that will most likely be planned here.
    """
    permits = asyncio.Semaphore(concurrency)
    # The outer group holds the plans under way: when the loop is cancelled they hand their runs back.
    async with store.changes(StoreTopic.PLANNING) as changed, asyncio.TaskGroup() as plans:
        hosts = hosts or GitHosts()
        files = CommitFiles(plans, git, scratch, hosts.is_proven, planned=planned)
        lookup = _RepositoryLookup(git=git, scratch=scratch, at_once=asyncio.Semaphore(MAX_LOOKUPS))
        claimed_runs = _ClaimedRuns()
        rng = random.Random()  # noqa: S311  jitter is no secret

        async def claim_runs() -> float:
            capacity = concurrency if governor is None else governor.plannable(concurrency)
            if capacity < concurrency and (capacity == 0 or claimed_runs.run_ids):
                return UNFIT_POLL_SECONDS
            claimed, limit = await _claim(store, worker_id, permits, capacity, claimed_runs)
            for task in claimed:
                claimed_runs.run_ids.add(task.run_id)
                plans.create_task(
                    _plan(
                        task,
                        store=store,
                        claimed_runs=claimed_runs,
                        files=files,
                        lookup=lookup,
                        rules=rules,
                        permits=permits,
                        governor=governor,
                        hosts=hosts,
                        rng=rng,
                    ),
                    name=f"plan {task.run_id}",
                )
            # Fewer than could be claimed: no further one waits.
            return 0.0 if len(claimed) == limit else await _until_next(store)

        under_way = set[asyncio.Task[None]]()

        def fetch_early(request: JobRequestV1) -> None:
            is_fit = governor is None or governor.plannable(concurrency) == concurrency
            has_permit = not permits.locked() and len(under_way) < concurrency
            # Not from a repository that has not answered yet: `hosts` limits how many of those are visited.
            is_safe = hosts.is_proven(request.repo_url) and hosts.pause_of(request.repo_url) is None
            if is_fit and has_permit and is_safe and untrusted(request, rules) is None:
                task = plans.create_task(
                    _fetch_early(request, files), name=f"fetch {request.commit_sha[:10]}"
                )
                under_way.add(task)
                task.add_done_callback(under_way.discard)

        with (early or EarlyFetches()).through(fetch_early):
            await on_notification(
                claim_runs,
                notified=changed,
                retry_seconds=POLL_SECONDS,
                rng=rng,
                log=LOG,
                failed=LogEvent.PLANNING_PAUSED,
            )


async def _fetch_early(request: JobRequestV1, files: CommitFiles) -> None:
    """Let the files come; planning asks for them again, and then learns of a failure."""
    with contextlib.suppress(CheckoutFailed):
        await files.of(request, workflow_paths(request))


async def _until_next(store: JobStore) -> float:
    """Return the seconds until the next delayed run is due, at most POLL_SECONDS."""
    due = await store.planning_pause()
    return POLL_SECONDS if due is None else min(POLL_SECONDS, max(due, NOT_TOO_SOON_SECONDS))


@dataclass(slots=True)
class _ClaimedRuns:
    """The runs that this orchestrator knows it has claimed."""

    run_ids: set[str] = field(default_factory=set)
    unsure: bool = False
    """The store failed during a claim, and may count further runs as ours."""


async def _claim(
    store: JobStore, worker_id: str, permits: asyncio.Semaphore, concurrency: int, claimed_runs: _ClaimedRuns
) -> tuple[Sequence[PlanningTask], int]:
    """Claim as many runs as there are free permits, and return them with that number.

    It waits for the first permit. Each claimed run then holds one.
    """
    await permits.acquire()
    acquired = 1
    while acquired < min(concurrency, CLAIMED_AT_ONCE) and not permits.locked():
        await permits.acquire()
        acquired += 1
    claimed: Sequence[PlanningTask] = ()
    claiming = asyncio.ensure_future(_ask_store(store, worker_id, acquired, claimed_runs))
    try:
        claimed = await asyncio.shield(claiming)
    except Exception:
        claimed_runs.unsure = True
        raise
    except asyncio.CancelledError:
        # The store may have given us runs already: they go back, since no task here will plan them.
        with contextlib.suppress(StoreUnavailable):
            await _hand_back(store, *await claiming)
        raise
    finally:
        for _ in range(acquired - len(claimed)):
            permits.release()
    return claimed, acquired


async def _ask_store(
    store: JobStore, worker_id: str, limit: int, claimed_runs: _ClaimedRuns
) -> Sequence[PlanningTask]:
    if claimed_runs.unsure:
        await store.take_back_planning(worker_id, claimed_runs.run_ids)
        claimed_runs.unsure = False
    return await store.claim_planning(worker_id, limit)


async def _plan(
    task: PlanningTask,
    *,
    store: JobStore,
    claimed_runs: _ClaimedRuns,
    files: CommitFiles,
    lookup: "_RepositoryLookup",
    rules: PlanningRules,
    permits: asyncio.Semaphore,
    governor: Governor | None,
    hosts: GitHosts,
    rng: random.Random,
) -> None:
    bound = LOG.bind(run_id=task.run_id, request_id=task.request.request_id)
    try:
        decision = await _decide_at_host(task, hosts, files=files, rules=rules, lookup=lookup)
        match decision:
            case PlannedJobs(jobs=jobs):
                if governor is not None:
                    governor.machine_worked()
                stored = await _store_plan(task, decision, store=store, lookup=lookup, rng=rng)
                bound.info(LogEvent.RUN_PLANNED, jobs=[job.name for job in jobs], stored=stored)
            case PlanRefused(reason=reason, detail=detail):
                if governor is not None and reason is Reason.MACHINE_FAILED:
                    # Before the run goes back: this orchestrator must not claim it again.
                    governor.machine_failed(detail)
                stored = await retry_while_unavailable(lambda: store.not_planned(task, reason, detail), rng)
                bound.info(LogEvent.RUN_NOT_PLANNED, reason=reason, detail=detail, stored=stored)
    except StoreUnavailable as error:
        # This orchestrator or another one plans it again.
        claimed_runs.unsure = True
        bound.warning(LogEvent.PLANNING_PAUSED, detail=str(error))
    except asyncio.CancelledError:
        await _hand_back(store, task)
        raise
    except OSError as error:
        if governor is not None:
            governor.machine_failed(str(error))
        stored = await _stored_failure(store, task, Reason.MACHINE_FAILED, str(error))
        bound.warning(
            LogEvent.RUN_NOT_PLANNED, reason=Reason.MACHINE_FAILED, detail=str(error), stored=stored
        )
    except Exception as error:
        # A bug that one run triggers must not stop the others, now or at every new start.
        LOG.exception(LogEvent.PLANNING_CRASHED, request_id=task.request.request_id, run_id=task.run_id)
        await _stored_failure(store, task, Reason.EXECUTOR_FAILED, f"{type(error).__name__}: {error}")
    finally:
        claimed_runs.run_ids.discard(task.run_id)
        permits.release()


async def _stored_failure(store: JobStore, task: PlanningTask, reason: Reason, detail: str) -> bool:
    """Record a failure of ours, and return whether that was possible.

    Otherwise the run is planned again later.
    """
    with contextlib.suppress(Exception):
        return await store.not_planned(task, reason, detail[:1000])
    return False


async def _store_plan(
    task: PlanningTask,
    plan: PlannedJobs,
    *,
    store: JobStore,
    lookup: "_RepositoryLookup",
    rng: random.Random,
) -> bool:
    """Store the jobs, after asking the repository which run is newer where that matters."""
    answers: dict[OrderQuestion, PushOrder | None] = {}
    for _ in range(MAX_QUESTIONS):
        answer = await retry_while_unavailable(lambda: store.planned(task, plan.jobs, plan.run, answers), rng)
        if not isinstance(answer, OrderQuestion):
            return answer
        answers[answer] = await lookup.order(task.request, answer)
    # Other runs were planned after every answer: without further questions, this run counts as the newer one.
    return bool(await retry_while_unavailable(lambda: store.planned(task, plan.jobs, plan.run), rng))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RepositoryLookup:
    """Asks repositories which push came first and what it changed, a few at a time."""

    git: GitPolicy
    scratch: Path
    at_once: asyncio.Semaphore

    async def order(self, request: JobRequestV1, question: OrderQuestion) -> PushOrder | None:
        """Return the order; None when the repository does not know it or cannot be asked."""
        try:
            async with self.at_once:
                history = await ask_repository(request, question, policy=self.git, scratch=self.scratch)
        except CheckoutFailed as error:
            LOG.warning(LogEvent.ANCESTRY_UNKNOWN, request_id=request.request_id, detail=error.detail[:1000])
            return None
        return answer(question, history)

    async def changed(self, request: JobRequestV1) -> ChangedPaths:
        """Return the paths that a push or a change request changed."""
        async with self.at_once:
            found = await changed_paths(request, policy=self.git, scratch=self.scratch)
        if found.unknown:
            LOG.info(LogEvent.PATHS_UNKNOWN, request_id=request.request_id, detail=found.unknown)
        return found


async def _hand_back(store: JobStore, *tasks: PlanningTask) -> None:
    """Release these runs for other orchestrators, without counting a try."""
    with contextlib.suppress(StoreUnavailable, TimeoutError):
        async with asyncio.timeout(HAND_BACK_SECONDS):
            for task in tasks:
                await store.not_planned(task, Reason.RELEASED, "the orchestrator that planned it shut down")


async def _decide_at_host(
    task: PlanningTask,
    hosts: GitHosts,
    *,
    files: CommitFiles,
    rules: PlanningRules,
    lookup: "_RepositoryLookup",
) -> PlannedJobs | PlanRefused:
    """Decide as `_decide` does, unless the git host must be left alone; remember its answer."""
    request = task.request
    pause = hosts.pause_of(request.repo_url)
    if pause is not None:
        return PlanRefused(reason=Reason.HOST_AWAY, detail=pause)
    with hosts.visit(request.repo_url):
        decision = await _decide(task, files=files, rules=rules, lookup=lookup)
    match decision:
        case PlanRefused(
            reason=Reason.CHECKOUT_FAILED | Reason.HOST_AWAY, detail=detail, host_away=host_away
        ):
            hosts.failed(request.repo_url, detail, host_away=host_away)
        case PlanRefused(reason=Reason.MACHINE_FAILED | Reason.NOT_TRUSTED):
            pass
        case _:
            hosts.answered(request.repo_url)
    return decision


async def _decide(
    task: PlanningTask, *, files: CommitFiles, rules: PlanningRules, lookup: "_RepositoryLookup"
) -> PlannedJobs | PlanRefused:
    """Plan the request's jobs or refuse it; raise nothing but CancelledError."""
    request = task.request
    refused = untrusted(request, rules)
    if refused:
        return refused
    try:
        contents = await _found(request, files)
    except CheckoutFailed as error:
        return PlanRefused(reason=error.reason, detail=error.detail[:1000], host_away=error.host_away)
    # In a thread: the largest and strangest file that is allowed takes a noticeable part of a second to read.
    plan = await asyncio.to_thread(plan_jobs, request, contents, rules, is_rerun=task.is_rerun)
    return plan.planned(await lookup.changed(request)) if isinstance(plan, WorkflowWithPaths) else plan


async def _found(request: JobRequestV1, files: CommitFiles) -> Mapping[str, bytes]:
    for lag in LAG_SECONDS:
        try:
            return await files.of(request, workflow_paths(request))
        except CheckoutFailed as error:
            if not error.may_appear:
                raise
            await asyncio.sleep(lag)
    return await files.of(request, workflow_paths(request))
