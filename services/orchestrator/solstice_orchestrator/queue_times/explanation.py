"""Explain why a job waits, how many go before it, and when it starts. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from solstice_common.messages.states import JobState
from solstice_common.values.quantities import quantity
from solstice_common.values.times import ago, duration, format_seconds
from solstice_orchestrator.queue_times.forecast import Forecast
from solstice_orchestrator.queue_times.job_forecast import bounds, forecast_start
from solstice_orchestrator.queue_times.waits import (
    COUNTED,
    SHOWN_HOLDERS,
    Holder,
    WaitExplanation,
    WaitFacts,
    WaitReason,
)
from solstice_orchestrator.scheduling.governor import UNFIT_RESOURCES
from solstice_orchestrator.scheduling.workers import WorkerState, WorkerView, free_slots, living, slots_of


def explain(facts: WaitFacts) -> WaitExplanation | None:
    """Return why the job waits; None for one whose steps run, or that has ended."""
    match facts.state:
        case None:
            return _not_planned(facts)
        case JobState.APPROVAL:
            return _why(
                facts,
                WaitReason.APPROVAL,
                f"Its author is not known to be allowed to push, so it waits for approval: 'solstice approve {facts.run_id}', "
                "or /ok-to-test under the change request.",
            )
        case JobState.BACKOFF:
            return _backoff(facts)
        case JobState.BLOCKED:
            return _blocked(facts)
        case JobState.WAITING:
            return _in_line(facts)
        case _:
            return _provisioning(facts)


def _provisioning(facts: WaitFacts) -> WaitExplanation | None:
    since = facts.provisioning_since
    if since is None:
        return None
    detail = f"It has a slot, and its worker prepares its container or VM, for {duration(facts.now - since)}."
    return _why(replace(facts, since=since), WaitReason.PROVISIONING, detail)


def _not_planned(facts: WaitFacts) -> WaitExplanation:
    if facts.not_before is not None:
        return _why(
            facts,
            WaitReason.NOT_BEFORE,
            f"It was asked for to start at {format_seconds(facts.not_before)}.",
            until=facts.not_before,
            expected_start=Forecast(earliest=facts.not_before, latest=facts.not_before),
        )
    if facts.until is not None and facts.until > facts.now:
        trouble = f": {facts.detail}" if facts.detail else ""
        return _why(
            facts,
            WaitReason.BACKOFF,
            f"Its workflow could not be read, and is tried again{trouble}.",
            until=facts.until,
        )
    alive = living(facts.workers)
    if alive and not any(worker.state is WorkerState.ACTIVE for worker in alive):
        return _why(
            facts,
            WaitReason.PAUSED,
            f"Its workflow is to be read, and no worker takes anything: {_states(alive)}.",
            until=_healed_at(alive),
        )
    able = [worker for worker in alive if worker.state is WorkerState.ACTIVE]
    if able and all(worker.refuses in UNFIT_RESOURCES for worker in able):
        return _why(
            facts,
            WaitReason.GOVERNOR,
            f"Its workflow is to be read, and {able[0].name} does not while {able[0].refusal}"
            f"{_and_others(len(able) - 1)}.",
            resource=able[0].refuses,
        )
    return _why(facts, WaitReason.NOT_PLANNED_YET, "Its workflow has not been read yet.")


def _backoff(facts: WaitFacts) -> WaitExplanation:
    what = facts.reason.value if facts.reason else "an infrastructure failure"
    trouble = f"{what}: {facts.detail}" if facts.detail else what
    return _why(
        facts,
        WaitReason.BACKOFF,
        f"It is tried again after a while ({trouble}).",
        until=facts.until,
        expected_start=forecast_start(facts),
    )


def _blocked(facts: WaitFacts) -> WaitExplanation:
    if facts.group is not None and facts.group_ahead:
        first, *others = facts.group_ahead
        more = f", {len(others)} more before it" if others else ""
        return _why(
            facts,
            WaitReason.CONCURRENCY_GROUP,
            f"{_called(first)} has the concurrency group {facts.group!r}{more}.",
            ahead=len(facts.group_ahead),
            holders=facts.group_ahead,
            expected_start=forecast_start(facts),
        )
    holders = [
        Holder(run_id=facts.run_id, job_id=need.job_id, name=need.name, repository=facts.repository)
        for need in facts.needs
    ]
    states = ", ".join(f"{need.name} ({need.state.value})" for need in facts.needs)
    return _why(
        facts,
        WaitReason.NEEDS,
        f"It needs jobs that have not ended: {states}." if states else "The jobs it needs have just ended.",
        holders=holders,
        expected_start=forecast_start(facts),
    )


def _in_line(facts: WaitFacts) -> WaitExplanation:
    """Explain the wait for a slot: whether one exists, what forbids it, who has them."""
    serving = [worker for worker in living(facts.workers) if slots_of(worker, facts.runs_on)]
    if not serving:
        alive = living(facts.workers)
        labels = sorted({label for worker in alive for label in worker.slots if slots_of(worker, label)})
        known = f"there are some for {', '.join(labels)}" if labels else "there is none at all"
        return _why(
            facts,
            WaitReason.NO_WORKER_FOR_LABEL,
            f"No worker serves the label {facts.runs_on}; {known}.",
            ahead=facts.ahead,
        )
    active = [worker for worker in serving if worker.state is WorkerState.ACTIVE]
    if not active:
        return _why(
            facts,
            WaitReason.PAUSED,
            f"No worker of the label {facts.runs_on} takes jobs: {_states(serving)}.",
            ahead=facts.ahead,
            until=_healed_at(serving),
        )
    start = forecast_start(facts)
    slots = sum(slots_of(worker, facts.runs_on) for worker in active)
    with_slots = [worker for worker in active if free_slots(worker, facts.runs_on)]
    limited = _at_cap(facts, start) or (_rate_limited(facts, start) if with_slots else None)
    if limited is not None:
        return limited
    if with_slots and all(worker.refuses for worker in with_slots):
        first = with_slots[0]
        return _why(
            facts,
            WaitReason.GOVERNOR,
            f"governor({first.refuses}): {first.name} starts nothing while {refusal_text(first, facts.now)}"
            f"{_and_others(len(with_slots) - 1)}.",
            ahead=facts.ahead,
            resource=first.refuses,
        )
    able = [worker for worker in with_slots if not worker.refuses]
    if (others_first := _others_first(facts, able)) is not None:
        return others_first
    goes_last = all(facts.repository in worker.repositories_last for worker in active)
    free = sum(free_slots(worker, facts.runs_on) for worker in able)
    if free > facts.ahead:
        detail = "A slot is free: it starts in a moment."
    else:
        use = "the slot" if slots == 1 else f"all {slots} slots"
        detail = f"Others have {use} of {facts.runs_on}{_shrunk(active)}; {_before(facts.ahead)}."
        if goes_last:
            detail += f" Jobs of other repositories go first, {_since_quarantine(facts, active[0])}."
            start = None
    return _why(
        facts,
        WaitReason.SLOTS_BUSY,
        detail,
        ahead=facts.ahead,
        holders=facts.running,
        expected_start=start,
    )


def _why(
    facts: WaitFacts,
    reason: WaitReason,
    detail: str,
    *,
    ahead: int | None = None,
    until: float | None = None,
    holders: Sequence[Holder] = (),
    expected_start: Forecast | None = None,
    resource: str | None = None,
) -> WaitExplanation:
    return WaitExplanation(
        reason=reason,
        detail=detail,
        since=facts.since,
        ahead=ahead,
        until=until,
        resource=resource,
        holders=tuple(holders[:SHOWN_HOLDERS]),
        expected_start=expected_start,
    )


def _at_cap(facts: WaitFacts, start: Forecast | None) -> WaitExplanation | None:
    """The explanation when its repository or owner is at its cap; None: it is not."""
    caps = (
        (WaitReason.REPOSITORY_CAP, facts.repository, facts.cap, facts.running_of_repository),
        (WaitReason.OWNER_CAP, facts.owner, facts.owner_cap, facts.running_of_owner),
    )
    for reason, who, cap, holders in caps:
        if cap is not None and len(holders) >= cap:
            return _why(
                facts,
                reason,
                f"{who} may run {quantity(cap, 'job')} at once, and does.",
                ahead=facts.ahead,
                holders=holders,
                expected_start=start,
            )
    return None


def _others_first(facts: WaitFacts, able: Sequence[WorkerView]) -> WaitExplanation | None:
    """The explanation while all workers that could start it take jobs of other repositories alone."""
    ends = [worker.others_alone_until for worker in able if facts.repository in worker.repositories_last]
    until = min((end for end in ends if end is not None), default=None)
    if until is None or len(ends) < len(able) or None in ends:
        return None
    first = able[0]
    return _why(
        facts,
        WaitReason.OTHERS_FIRST,
        f"{first.name} starts only jobs of other repositories until {format_seconds(until)}, "
        f"{_since_quarantine(facts, first)}{_and_others(len(able) - 1)}.",
        ahead=facts.ahead,
        until=until,
    )


def _since_quarantine(facts: WaitFacts, worker: WorkerView) -> str:
    return (
        f"since jobs of {facts.repository} failed there before {worker.name} was quarantined; "
        "the usual order returns when a job has ended there by itself"
    )


def _rate_limited(facts: WaitFacts, start: Forecast | None) -> WaitExplanation | None:
    """The explanation by the rate or quota that delays it most; None: none delays it.

    No rate delays it when there is a token for it and for each job before it.
    """
    bound = max(bounds(facts), key=lambda each: each.seconds, default=None)
    if bound is None or bound.seconds <= 0:
        return None
    return _why(
        facts,
        WaitReason.RATE_LIMITED,
        f"As many jobs of {bound.who} have started as may for now ({bound.limit}); {_before(facts.ahead)}.",
        ahead=facts.ahead,
        until=None if math.isinf(bound.seconds) else facts.now + bound.seconds,
        resource=bound.resource,
        expected_start=start,
    )


def refusal_text(worker: WorkerView, now: float) -> str:
    """Return what the worker lacks, with its last reported value and the age of that."""
    if worker.condition_at is None:
        return worker.refusal
    return f"{worker.refusal} (measured {ago(now - worker.condition_at)})"


def _shrunk(workers: Iterable[WorkerView]) -> str:
    """Return text about slots that workers under pressure do not offer now."""
    shrunk = [worker for worker in workers if worker.shrunk_to is not None]
    if not shrunk:
        return ""
    return f" ({quantity(len(shrunk), 'worker')} fewer at once for now, after failures or under load)"


def _and_others(count: int) -> str:
    return f", and {quantity(count, 'other')} too" if count else ""


def _states(workers: Iterable[WorkerView]) -> str:
    states = Counter(worker.state.value for worker in workers)
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def _healed_at(workers: Iterable[WorkerView]) -> float | None:
    """Return when the first quarantine of these workers ends; None: none is in quarantine."""
    ends = [
        worker.quarantined_until
        for worker in workers
        if worker.state is WorkerState.QUARANTINED and worker.quarantined_until is not None
    ]
    return min(ends, default=None)


def _called(holder: Holder) -> str:
    if holder.job_id is None:
        return f"Run {holder.run_id}"
    return f"Job {holder.name} of run {holder.run_id}"


def _before(ahead: int) -> str:
    if ahead >= COUNTED:
        return f"{COUNTED} jobs or more before it"
    return "it is the next" if ahead == 0 else f"{quantity(ahead, 'job')} before it"
