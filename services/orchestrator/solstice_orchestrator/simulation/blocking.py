"""What keeps a job of a trace from waiting for a slot: the jobs it needs, and concurrency groups. Pure.

`needs.py` and `groups.py` decide; here stands who is there, which the stores keep in rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.domain.needs import Node, unblock
from solstice_orchestrator.domain.seniority import Seniority
from solstice_orchestrator.simulation.trace import TraceGroup, TraceJob, TraceRun
from solstice_orchestrator.superseding.groups import Member, Scope, settle_group


@dataclass(slots=True, eq=False)
class Ticket:
    """A job on its way."""

    age: int
    """Its number in the trace."""
    job: TraceJob
    plan: "Plan | None" = None
    """Its run, if something of it may have to wait for something else."""


class Plan:
    """A run of which jobs have needs or groups."""

    def __init__(self, tickets: Sequence[Ticket]) -> None:
        begun = tickets[0]
        self.run_id = f"run {begun.age}"
        self.tickets = {str(ticket.age): ticket for ticket in tickets}
        ids = {ticket.job.name: str(ticket.age) for ticket in tickets if ticket.job.name}
        self.nodes = {
            str(ticket.age): Node(state=JobState.BLOCKED, needs=tuple(ids[need] for need in ticket.job.needs))
            for ticket in tickets
        }
        self.seniority = Seniority(asked_at=begun.job.at, age=begun.age)
        self.group = begun.job.run_concurrency
        self.holds = False
        """Whether the group is the run's, so that its jobs may go on."""
        self.stopping: set[str] = set()
        """Jobs that run and were told to end."""

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
class Step:
    """What follows, to be done in this order; steps one after the other."""

    withdrawn: list[Ticket] = field(default_factory=list)
    """They waited for a slot, and never will again."""
    stopped: list[Ticket] = field(default_factory=list)
    """They run, and end now."""
    ready: list[Ticket] = field(default_factory=list)
    """They begin to wait for a slot, together; all of one repository."""
    dropped: int = 0
    """How many were cancelled or skipped before they started."""


def is_plain(run: TraceRun) -> bool:
    """Whether nothing keeps any of its jobs from waiting for a slot at once."""
    for job in run:
        if job.needs or job.concurrency is not None or job.run_concurrency is not None:
            return False
    return True


class Blocking:
    """All runs that are not plain, until they have ended."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, tuple[Plan, str | None]]] = {}
        """By the key of the group, then by holder: the run, and which of its jobs, or none for the run itself."""
        self._touched: dict[str, None] = {}

    def begin(self, tickets: Sequence[Ticket]) -> Sequence[Step]:
        """A run comes."""
        plan = Plan(tickets)
        for ticket in tickets:
            ticket.plan = plan
        return self._settled(plan)

    def started(self, ticket: Ticket) -> None:
        """A job has got its slot."""
        if ticket.plan is not None:
            ticket.plan.move(str(ticket.age), JobState.RUNNING)

    def ended(self, ticket: Ticket) -> Sequence[Step]:
        """A job that ran has ended, by itself or because it was stopped."""
        plan, job_id = ticket.plan, str(ticket.age)
        if plan is None:
            return ()
        self._end(plan, job_id, JobState.CANCELLED if job_id in plan.stopping else JobState.SUCCEEDED)
        return self._settled(plan)

    def _settled(self, plan: Plan) -> Sequence[Step]:
        """The run goes on; groups that somebody asked for or left are looked at until nothing follows from it."""
        steps = [Step()]
        self._go_on(plan, steps[0])
        while self._touched:
            key, _ = self._touched.popitem()
            holders = self._groups.get(key, {})
            settled = settle_group([_member(holder, *who) for holder, who in holders.items()])
            step = Step()
            for holder in settled.superseded:
                self._make_way(*holders[holder], step)
            if settled.let_go is not None:
                self._let_go(*holders[settled.let_go], step)
            steps.append(step)
        return steps

    def _go_on(self, plan: Plan, step: Step) -> None:
        """Jobs that nothing keeps from it any more begin to wait for a slot."""
        for unblocked in unblock(plan.nodes):
            job_id = unblocked.name
            if unblocked.state is JobState.SKIPPED:
                step.dropped += 1
                self._end(plan, job_id, JobState.SKIPPED)
            elif not self._ask(plan, job_id):
                plan.move(job_id, JobState.WAITING)
                step.ready.append(plan.tickets[job_id])

    def _ask(self, plan: Plan, job_id: str) -> bool:
        """Ask for the group of the run, unless the run has it, then for the job's own; False: it needs none."""
        job = plan.tickets[job_id].job
        if plan.group is not None and not plan.holds:
            self._join(_key(Scope.RUN, job, plan.group), plan.run_id, plan, None)
        elif job.concurrency is not None:
            self._join(_key(Scope.JOB, job, job.concurrency), job_id, plan, job_id)
        else:
            return False
        return True

    def _join(self, key: str, holder: str, plan: Plan, job_id: str | None) -> None:
        holders = self._groups.setdefault(key, {})
        if holder not in holders:
            holders[holder] = plan, job_id
            self._touched[key] = None

    def _leave(self, key: str, holder: str) -> None:
        holders = self._groups.get(key, {})
        if holders.pop(holder, None) is not None:
            self._touched[key] = None
            if not holders:
                del self._groups[key]

    def _let_go(self, plan: Plan, job_id: str | None, step: Step) -> None:
        if job_id is None:
            plan.holds = True
            self._go_on(plan, step)
        else:
            plan.move(job_id, JobState.WAITING)
            step.ready.append(plan.tickets[job_id])

    def _make_way(self, plan: Plan, job_id: str | None, step: Step) -> None:
        for each in list(plan.nodes) if job_id is None else [job_id]:
            state = plan.state(each)
            if state is JobState.RUNNING:
                if each not in plan.stopping:
                    plan.stopping.add(each)
                    step.stopped.append(plan.tickets[each])
            elif not state.final:
                if state is JobState.WAITING:
                    step.withdrawn.append(plan.tickets[each])
                step.dropped += 1
                self._end(plan, each, JobState.CANCELLED)
        self._go_on(plan, step)

    def _end(self, plan: Plan, job_id: str, state: JobState) -> None:
        plan.move(job_id, state)
        job = plan.tickets[job_id].job
        if job.concurrency is not None:
            self._leave(_key(Scope.JOB, job, job.concurrency), job_id)
        if plan.group is not None and plan.ended:
            self._leave(_key(Scope.RUN, job, plan.group), plan.run_id)


def _key(scope: Scope, job: TraceJob, group: TraceGroup) -> str:
    return f"{scope.value}\n{job.repository}\n{group.group}"


def _member(holder: str, plan: Plan, job_id: str | None) -> Member:
    if job_id is None:
        mode = plan.group.mode if plan.group is not None else GroupMode.QUEUE
        holds, running, position = plan.holds, plan.running, 0
    else:
        ticket, state = plan.tickets[job_id], plan.state(job_id)
        mode = ticket.job.concurrency.mode if ticket.job.concurrency is not None else GroupMode.QUEUE
        holds, running, position = state is not JobState.BLOCKED, state is JobState.RUNNING, ticket.age
    return Member(
        holder=holder,
        run_id=plan.run_id,
        seniority=plan.seniority,
        position=position,
        mode=mode,
        holds=holds,
        running=running,
    )
