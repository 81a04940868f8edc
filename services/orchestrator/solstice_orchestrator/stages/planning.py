"""A stored run becomes jobs: its workflow file is fetched at its commit, read, and planned or refused."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.runtime.pausing import pause
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_ancestry import ask_repository
from solstice_orchestrator.git.commit_files import CommitFiles
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.store.protocol import JobStore, PlanningTask
from solstice_orchestrator.superseding.push_order import OrderQuestion, PushOrder, answer
from solstice_orchestrator.worker.log_buffer import retry_while_unavailable
from solstice_orchestrator.worker.pressure import Governor
from solstice_orchestrator.workflow.job_plan import (
    PlannedJobs,
    PlanningRules,
    PlanRefused,
    plan_jobs,
    untrusted,
    wanted_paths,
)

LOG = structlog.get_logger(__name__)

CONCURRENCY: Final = 64
"""Runs that are planned at once: they wait for forges, and those of one repository are fetched together."""
CLAIMED_AT_ONCE: Final = 16
LOOK_AGAIN_SECONDS: Final = 5.0
"""How often the store is asked without being told that something changed; also after it was away."""
UNFIT_LOOK_SECONDS: Final = 0.5
"""How often a machine that could not plan is asked whether it can again."""
NOT_TOO_SOON_SECONDS: Final = 0.01
"""A clock of the store that stands a moment before the time of a delayed run is not asked without pause."""
LAG_SECONDS: Final = (1.0, 4.0)
"""When to look again for a commit that is not there: a forge may tell of a push before its last replica has it."""
MAX_QUESTIONS: Final = 5
"""So often a run asks who is the newer one, when every time another run has been planned meanwhile."""
MAX_ASKED: Final = 4
"""Repositories that are asked for that at once."""
HAND_BACK_SECONDS: Final = 5.0
"""How long, at the end, the store is given to take back what was not planned; after that the heartbeat's end does it."""


async def run_planning(
    *,
    store: JobStore,
    worker_id: str,
    git: GitPolicy,
    scratch: Path,
    rules: PlanningRules,
    concurrency: int = CONCURRENCY,
    when_planned: Callable[[], object] = lambda: None,
    governor: Governor | None = None,
    hosts: GitHosts | None = None,
) -> None:
    """Plan whatever waits for it, until cancelled; what is under way then is handed back.

    `when_planned` is called after every run that got jobs, so that dispatch need not wait for the store's notification.
    `governor` says whether this machine can plan at all, and is told when it could not; without it, it always can.
    `hosts` says which git hosts are to be left alone, and is told what they answered.
    """
    places = asyncio.Semaphore(concurrency)
    # The outer group holds the plans under way: when the loop is cancelled they hand their runs back.
    async with store.changes() as changed, asyncio.TaskGroup() as plans:
        files = CommitFiles(plans, git, scratch)
        push_order_lookup = _PushOrderLookup(git=git, scratch=scratch, at_once=asyncio.Semaphore(MAX_ASKED))
        claimed_runs = _ClaimedRuns()
        hosts = hosts or GitHosts()
        while True:
            changed.clear()
            room = concurrency if governor is None else governor.plannable(concurrency)
            if room < concurrency and (room == 0 or claimed_runs.run_ids):
                await asyncio.sleep(UNFIT_LOOK_SECONDS)
                continue
            claimed = await _claim(store, worker_id, places, room, claimed_runs)
            for task in claimed:
                claimed_runs.run_ids.add(task.run_id)
                plans.create_task(
                    _plan(
                        task,
                        store=store,
                        claimed_runs=claimed_runs,
                        files=files,
                        push_order_lookup=push_order_lookup,
                        rules=rules,
                        places=places,
                        when_planned=when_planned,
                        governor=governor,
                        hosts=hosts,
                    ),
                    name=f"plan {task.run_id}",
                )
            if not claimed:
                await pause(await _until_next(store), unless=changed)


async def _until_next(store: JobStore) -> float:
    """Seconds after which to look again: when the next delayed run is due, or now and then."""
    try:
        due = await store.planning_pause()
    except StoreUnavailable:
        due = None
    return LOOK_AGAIN_SECONDS if due is None else min(LOOK_AGAIN_SECONDS, max(due, NOT_TOO_SOON_SECONDS))


@dataclass(slots=True)
class _ClaimedRuns:
    """What is known to be ours to plan."""

    run_ids: set[str] = field(default_factory=set)
    unsure: bool = False
    """The store was away as it answered: there may be runs that it takes for ours."""


async def _claim(
    store: JobStore, worker_id: str, places: asyncio.Semaphore, concurrency: int, claimed_runs: _ClaimedRuns
) -> Sequence[PlanningTask]:
    """Take as many runs as there are places, each of which is then held for its run; waits for the first place."""
    await places.acquire()
    held = 1
    while held < min(concurrency, CLAIMED_AT_ONCE) and not places.locked():
        await places.acquire()
        held += 1
    claimed: Sequence[PlanningTask] = ()
    claiming = asyncio.ensure_future(_ask_store(store, worker_id, held, claimed_runs))
    try:
        claimed = await asyncio.shield(claiming)
    except StoreUnavailable as error:
        claimed_runs.unsure = True
        LOG.warning(LogEvent.PLANNING_HELD, error=str(error))
    except asyncio.CancelledError:
        # The store may have given us runs already that nobody here will ever see.
        with contextlib.suppress(StoreUnavailable):
            await _hand_back(store, *await claiming)
        raise
    finally:
        for _ in range(held - len(claimed)):
            places.release()
    return claimed


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
    push_order_lookup: "_PushOrderLookup",
    rules: PlanningRules,
    places: asyncio.Semaphore,
    when_planned: Callable[[], object],
    governor: Governor | None,
    hosts: GitHosts,
) -> None:
    bound = LOG.bind(run_id=task.run_id, request_id=task.request.request_id)
    chance = random.Random()  # noqa: S311  jitter is no secret
    try:
        decision = await _decide_at_host(task.request, hosts, files=files, rules=rules)
        match decision:
            case PlannedJobs(jobs=jobs):
                if governor is not None:
                    governor.machine_worked()
                kept = await _store_plan(
                    task, decision, store=store, push_order_lookup=push_order_lookup, chance=chance
                )
                bound.info(LogEvent.RUN_PLANNED, jobs=[job.name for job in jobs], kept=kept)
                when_planned()
            case PlanRefused(reason=reason, detail=detail):
                if governor is not None and reason is Reason.MACHINE_FAILED:
                    # Before the run goes back: we must not be the one who takes it again.
                    governor.machine_failed(detail)
                kept = await retry_while_unavailable(lambda: store.not_planned(task, reason, detail), chance)
                bound.info(LogEvent.RUN_NOT_PLANNED, reason=reason, detail=detail, kept=kept)
    except StoreUnavailable as error:
        # It is planned again, by us or by somebody else.
        claimed_runs.unsure = True
        bound.warning(LogEvent.PLANNING_HELD, error=str(error))
    except asyncio.CancelledError:
        await _hand_back(store, task)
        raise
    except OSError as error:
        if governor is not None:
            governor.machine_failed(str(error))
        bound.warning(LogEvent.RUN_NOT_PLANNED, reason=Reason.MACHINE_FAILED, detail=str(error), kept=True)
        with contextlib.suppress(Exception):
            await store.not_planned(task, Reason.MACHINE_FAILED, str(error)[:1000])
    except Exception as error:
        # A mistake of ours that one run brings out must not stop the others, now or at every new start.
        LOG.exception(LogEvent.PLANNING_BROKE, request_id=task.request.request_id, run_id=task.run_id)
        with contextlib.suppress(Exception):
            await store.not_planned(task, Reason.EXECUTOR_FAILED, f"{type(error).__name__}: {error}"[:1000])
    finally:
        claimed_runs.run_ids.discard(task.run_id)
        places.release()


async def _store_plan(
    task: PlanningTask,
    plan: PlannedJobs,
    *,
    store: JobStore,
    push_order_lookup: "_PushOrderLookup",
    chance: random.Random,
) -> bool:
    """Store the jobs; where it depends on the repository who is the newer run, ask it first."""
    answers: dict[OrderQuestion, PushOrder | None] = {}
    for _ in range(MAX_QUESTIONS):
        kept = await retry_while_unavailable(
            lambda: store.planned(task, plan.jobs, plan.run, answers), chance
        )
        if not isinstance(kept, OrderQuestion):
            return kept
        answers[kept] = await push_order_lookup.order(task.request, kept)
    # Others went on being planned meanwhile: as things stand the one that asked last is the newer one.
    return bool(await retry_while_unavailable(lambda: store.planned(task, plan.jobs, plan.run), chance))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PushOrderLookup:
    """Asks repositories which of two pushes came first, a few at a time."""

    git: GitPolicy
    scratch: Path
    at_once: asyncio.Semaphore

    async def order(self, request: JobRequestV1, question: OrderQuestion) -> PushOrder | None:
        """None: the repository cannot tell, or cannot be asked."""
        try:
            async with self.at_once:
                history = await ask_repository(request, question, policy=self.git, scratch=self.scratch)
        except CheckoutFailed as error:
            LOG.warning(LogEvent.ANCESTRY_UNKNOWN, request_id=request.request_id, detail=error.detail[:1000])
            return None
        return answer(question, history)


async def _hand_back(store: JobStore, *tasks: PlanningTask) -> None:
    """Let somebody else plan these, soon and without counting ours as a try."""
    with contextlib.suppress(StoreUnavailable, TimeoutError):
        async with asyncio.timeout(HAND_BACK_SECONDS):
            for task in tasks:
                await store.not_planned(task, Reason.RELEASED, "the orchestrator that planned it shut down")


async def _decide_at_host(
    request: JobRequestV1, hosts: GitHosts, *, files: CommitFiles, rules: PlanningRules
) -> PlannedJobs | PlanRefused:
    """As `decide`, unless the repository's host is to be left alone; what it answered is remembered."""
    held = hosts.held(request.repo_url)
    if held is not None:
        return PlanRefused(reason=Reason.HOST_AWAY, detail=held)
    with hosts.visit(request.repo_url):
        decision = await decide(request, files=files, rules=rules)
    match decision:
        case PlanRefused(reason=Reason.CHECKOUT_FAILED, detail=detail):
            hosts.failed(request.repo_url, detail)
        case PlanRefused(reason=Reason.MACHINE_FAILED | Reason.NOT_TRUSTED):
            pass
        case _:
            hosts.answered(request.repo_url)
    return decision


async def decide(
    request: JobRequestV1, *, files: CommitFiles, rules: PlanningRules
) -> PlannedJobs | PlanRefused:
    """What becomes of the request; raises nothing but CancelledError."""
    refused = untrusted(request, rules)
    if refused:
        return refused
    try:
        found = await _found(request, files)
    except CheckoutFailed as error:
        return PlanRefused(reason=error.reason, detail=error.detail[:1000])
    # In a thread: a file as large and as strange as allowed takes a noticeable part of a second to read.
    return await asyncio.to_thread(plan_jobs, request, found, rules)


async def _found(request: JobRequestV1, files: CommitFiles) -> Mapping[str, bytes]:
    for lag in LAG_SECONDS:
        try:
            return await files.of(request, wanted_paths(request))
        except CheckoutFailed as error:
            if not error.may_appear:
                raise
            await asyncio.sleep(lag)
    return await files.of(request, wanted_paths(request))
