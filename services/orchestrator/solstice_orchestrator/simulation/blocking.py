"""Which jobs of a trace wait for needs or concurrency groups. Pure.

`needs.py` and `groups.py` decide; this module keeps in memory what the stores keep in rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.domain.needs import DependencyNode, unblock
from solstice_orchestrator.simulation.trace import TraceGroup, TraceJob, TraceRun
from solstice_orchestrator.superseding.groups import GroupMember, GroupScope, settle_group
from solstice_orchestrator.superseding.seniority import Seniority


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A job of the trace, in the simulation."""

    age: int
    """Its number in the trace."""
    job: TraceJob
    simulated_run: "SimulatedRun | None" = None
    """Its run, if a job of the run may have to wait; None: a plain run."""


class SimulatedRun:
    """A run with needs or concurrency groups."""

    def __init__(self, simulated_jobs: Sequence[SimulatedJob]) -> None:
        begun = simulated_jobs[0]
        self.run_id = f"run {begun.age}"
        self.simulated_jobs = {str(simulated.age): simulated for simulated in simulated_jobs}
        ids = {simulated.job.name: str(simulated.age) for simulated in simulated_jobs if simulated.job.name}
        self.nodes = {
            str(simulated.age): DependencyNode(
                state=JobState.BLOCKED, needs=tuple(ids[need] for need in simulated.job.needs)
            )
            for simulated in simulated_jobs
        }
        self.seniority = Seniority(requested_at=begun.job.at, age=begun.age)
        self.group = begun.job.run_concurrency
        self.holds = False
        """Whether the run holds its group, so that its jobs may continue."""
        self.stopping: set[str] = set()
        """Running jobs that must end."""

    def state(self, job_id: str) -> JobState:
        return self.nodes[job_id].state

    def move(self, job_id: str, state: JobState) -> None:
        self.nodes[job_id] = replace(self.nodes[job_id], state=state)

    @property
    def running(self) -> bool:
        return any(node.state is JobState.RUNNING for node in self.nodes.values())

    @property
    def ended(self) -> bool:
        return all(node.state.final for node in self.nodes.values())


@dataclass(slots=True)
class RunConsequences:
    """The consequences of an event, to be applied in this order, one step after another."""

    withdrawn: list[SimulatedJob] = field(default_factory=list)
    """Jobs that waited for a slot, and no longer do."""
    stopped: list[SimulatedJob] = field(default_factory=list)
    """Running jobs that end now."""
    ready: list[SimulatedJob] = field(default_factory=list)
    """Jobs of one repository that begin to wait for a slot, together."""
    dropped: int = 0
    """How many jobs were cancelled or skipped before they started."""


def is_plain(run: TraceRun) -> bool:
    """Return whether all jobs of the run may wait for a slot at once."""
    for job in run:
        if job.needs or job.concurrency is not None or job.run_concurrency is not None:
            return False
    return True


class JobBlocking:
    """All unfinished runs that are not plain."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, tuple[SimulatedRun, str | None]]] = {}
        """By group key, then by holder: the run, and its job; None: the run itself holds."""
        self._touched: dict[str, None] = {}

    def begin(self, simulated_jobs: Sequence[SimulatedJob]) -> Sequence[RunConsequences]:
        """Add a run."""
        simulated_run = SimulatedRun(simulated_jobs)
        for simulated in simulated_jobs:
            simulated.simulated_run = simulated_run
        return self._settled(simulated_run)

    def started(self, simulated: SimulatedJob) -> None:
        """Record that a job has started."""
        if simulated.simulated_run is not None:
            simulated.simulated_run.move(str(simulated.age), JobState.RUNNING)

    def ended(self, simulated: SimulatedJob) -> Sequence[RunConsequences]:
        """Record that a running job has ended, by itself or because it was stopped."""
        simulated_run, job_id = simulated.simulated_run, str(simulated.age)
        if simulated_run is None:
            return ()
        self._end(
            simulated_run,
            job_id,
            JobState.CANCELLED if job_id in simulated_run.stopping else JobState.SUCCEEDED,
        )
        return self._settled(simulated_run)

    def _settled(self, simulated_run: SimulatedRun) -> Sequence[RunConsequences]:
        """Continue the run, and settle the affected groups until nothing changes."""
        steps = [RunConsequences()]
        self._go_on(simulated_run, steps[0])
        while self._touched:
            key, _ = self._touched.popitem()
            holders = self._groups.get(key, {})
            settled = settle_group([_member(holder, *who) for holder, who in holders.items()])
            step = RunConsequences()
            for holder in settled.superseded:
                self._cancel_superseded(*holders[holder], step)
            if settled.new_holder is not None:
                self._give_group(*holders[settled.new_holder], step)
            steps.append(step)
        return steps

    def _go_on(self, simulated_run: SimulatedRun, step: RunConsequences) -> None:
        """Let the unblocked jobs of the run wait for a slot."""
        for unblocked in unblock(simulated_run.nodes):
            job_id = unblocked.name
            if unblocked.state is JobState.SKIPPED:
                step.dropped += 1
                self._end(simulated_run, job_id, JobState.SKIPPED)
            elif not self._ask(simulated_run, job_id):
                simulated_run.move(job_id, JobState.WAITING)
                step.ready.append(simulated_run.simulated_jobs[job_id])

    def _ask(self, simulated_run: SimulatedRun, job_id: str) -> bool:
        """Ask for the run's group first, then for the job's own; False: it needs none."""
        job = simulated_run.simulated_jobs[job_id].job
        if simulated_run.group is not None and not simulated_run.holds:
            self._join(
                _key(GroupScope.RUN, job, simulated_run.group), simulated_run.run_id, simulated_run, None
            )
        elif job.concurrency is not None:
            self._join(_key(GroupScope.JOB, job, job.concurrency), job_id, simulated_run, job_id)
        else:
            return False
        return True

    def _join(self, key: str, holder: str, simulated_run: SimulatedRun, job_id: str | None) -> None:
        holders = self._groups.setdefault(key, {})
        if holder not in holders:
            holders[holder] = simulated_run, job_id
            self._touched[key] = None

    def _leave(self, key: str, holder: str) -> None:
        holders = self._groups.get(key, {})
        if holders.pop(holder, None) is not None:
            self._touched[key] = None
            if not holders:
                del self._groups[key]

    def _give_group(self, simulated_run: SimulatedRun, job_id: str | None, step: RunConsequences) -> None:
        if job_id is None:
            simulated_run.holds = True
            self._go_on(simulated_run, step)
        else:
            simulated_run.move(job_id, JobState.WAITING)
            step.ready.append(simulated_run.simulated_jobs[job_id])

    def _cancel_superseded(
        self, simulated_run: SimulatedRun, job_id: str | None, step: RunConsequences
    ) -> None:
        for each in list(simulated_run.nodes) if job_id is None else [job_id]:
            state = simulated_run.state(each)
            if state is JobState.RUNNING:
                if each not in simulated_run.stopping:
                    simulated_run.stopping.add(each)
                    step.stopped.append(simulated_run.simulated_jobs[each])
            elif not state.final:
                if state is JobState.WAITING:
                    step.withdrawn.append(simulated_run.simulated_jobs[each])
                step.dropped += 1
                self._end(simulated_run, each, JobState.CANCELLED)
        self._go_on(simulated_run, step)

    def _end(self, simulated_run: SimulatedRun, job_id: str, state: JobState) -> None:
        simulated_run.move(job_id, state)
        job = simulated_run.simulated_jobs[job_id].job
        if job.concurrency is not None:
            self._leave(_key(GroupScope.JOB, job, job.concurrency), job_id)
        if simulated_run.group is not None and simulated_run.ended:
            self._leave(_key(GroupScope.RUN, job, simulated_run.group), simulated_run.run_id)


def _key(scope: GroupScope, job: TraceJob, group: TraceGroup) -> str:
    return f"{scope.value}\n{job.repository}\n{group.group}"


def _member(holder: str, simulated_run: SimulatedRun, job_id: str | None) -> GroupMember:
    if job_id is None:
        mode = simulated_run.group.mode if simulated_run.group is not None else GroupMode.QUEUE
        holds, running, position = simulated_run.holds, simulated_run.running, 0
    else:
        simulated, state = simulated_run.simulated_jobs[job_id], simulated_run.state(job_id)
        mode = simulated.job.concurrency.mode if simulated.job.concurrency is not None else GroupMode.QUEUE
        holds, running, position = state is not JobState.BLOCKED, state is JobState.RUNNING, simulated.age
    return GroupMember(
        holder=holder,
        run_id=simulated_run.run_id,
        seniority=simulated_run.seniority,
        position=position,
        mode=mode,
        holds=holds,
        running=running,
    )
