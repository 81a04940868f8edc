"""Changes one run or job, written once for all stores, which only load and write.

Each operation is one decision on a run's rows, in one transaction of the store.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from solstice_common.messages import Priority
from solstice_orchestrator.domain.jobs import DEFAULT_RUN_SPEC, JobSpec, Reason, RunSpec
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.store.decisions import plan, steer
from solstice_orchestrator.store.decisions.plan import DecidePlan, approve_run
from solstice_orchestrator.store.decisions.steer import Rerun
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.store.views import JobView, RunView
from solstice_orchestrator.superseding.push_order import OrderAnswers, OrderQuestion

T = TypeVar("T")


class RunOperations(ABC):
    """The planning and steering part of `JobStore`; a store adds how it loads and writes."""

    @abstractmethod
    async def job(self, job_id: str) -> JobView | None: ...

    @abstractmethod
    async def _plan(self, task: PlanningTask, run: RunSpec, decide: DecidePlan) -> bool | OrderQuestion:
        """Load the run with those that it may supersede, carry out the decision."""

    @abstractmethod
    async def _change_run(self, run_id: str, decide: Callable[[UnitOfWork], T]) -> T:
        """Load the run with its jobs, carry out the decision, return its answer."""

    @abstractmethod
    async def _steer_job(self, job_id: str, decide: Callable[[UnitOfWork], None]) -> JobView | None:
        """Load the job with its run, carry out the decision, return the job."""

    @abstractmethod
    async def _steer_run(self, run_id: str, decide: Callable[[UnitOfWork], None]) -> RunView | None:
        """Load the run with its jobs, carry out the decision, return the run."""

    @abstractmethod
    async def _rerun(self, run_id: str, decide: Callable[[UnitOfWork], Rerun | T]) -> RunView | T | None:
        """Load the run with its jobs, admit the rerun if there is one.

        Returns the new run.
        """

    async def planned(
        self,
        task: PlanningTask,
        jobs: Sequence[JobSpec],
        run: RunSpec = DEFAULT_RUN_SPEC,
        answers: OrderAnswers | None = None,
    ) -> bool | OrderQuestion:
        return await self._plan(
            task,
            run,
            lambda unit, history, scope: plan.planned(
                unit, task, jobs, run, history, rerun_scope=scope, answers=answers
            ),
        )

    async def not_planned(self, task: PlanningTask, reason: Reason, detail: str) -> bool:
        return await self._change_run(task.run_id, lambda unit: plan.not_planned(unit, task, reason, detail))

    async def cancel_job(self, job_id: str, detail: str = "") -> JobView | None:
        return await self._steer_job(job_id, lambda unit: steer.cancel_job(unit, job_id, detail))

    async def cancel_run(self, run_id: str, detail: str = "") -> RunView | None:
        return await self._steer_run(run_id, lambda unit: steer.cancel_run(unit, run_id, detail))

    async def prioritise(self, job_id: str, priority: Priority) -> JobView | None:
        return await self._steer_job(job_id, lambda unit: steer.prioritise(unit, job_id, priority))

    async def approve_run(self, run_id: str) -> RunView | None:
        return await self._steer_run(run_id, lambda unit: approve_run(unit, run_id))

    async def rerun(self, run_id: str) -> RunView | None:
        return await self._rerun(run_id, lambda unit: steer.rerun(unit, run_id))

    async def rerun_failed(self, run_id: str) -> RunView | RerunRefusal | None:
        return await self._rerun(run_id, lambda unit: steer.rerun_failed(unit, run_id))

    async def rerun_job(self, job_id: str) -> RunView | RerunRefusal | None:
        job = await self.job(job_id)
        if job is None:
            return None
        return await self._rerun(job.run_id, lambda unit: steer.rerun_job(unit, job_id))
