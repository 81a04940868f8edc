"""When a waiting job can start under all limits: slot, caps, quota and rates. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import (
    BusySlot,
    Forecast,
    JobsAhead,
    forecast_slot,
    remaining_range,
)
from solstice_orchestrator.queue_times.waits import COUNTED, OWNER, Holder, WaitFacts
from solstice_orchestrator.scheduling import quotas
from solstice_orchestrator.scheduling.rates import BucketScope, seconds_until
from solstice_orchestrator.scheduling.workers import active, free_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBound:
    """A rate or quota that delays the start of a job."""

    resource: str
    who: str
    limit: str
    seconds: float
    """Seconds until it and the jobs before it may have started; infinite: never."""


def forecast_start(facts: WaitFacts) -> Forecast | None:
    """Return when the job can start under all limits; None: there is no forecast.

    It counts needs, the concurrency group, a slot, caps, and rates.
    """
    if facts.state is JobState.BLOCKED:
        return _after_group(facts) if facts.group_ahead else _after_all([need.facts for need in facts.needs])
    if facts.state is JobState.APPROVAL:
        return None
    start = _slot_within_limits(facts)
    rated = facts.now + max((each.seconds for each in bounds(facts)), default=0.0)
    if start is None or math.isinf(rated):
        return None
    forecast = later_forecast(start, Forecast(earliest=rated, latest=rated))
    if facts.state is JobState.BACKOFF:
        # Without an end there is no forecast.
        return (
            None
            if facts.until is None
            else later_forecast(forecast, Forecast(earliest=facts.until, latest=facts.until))
        )
    return forecast


def forecast_end(facts: WaitFacts) -> Forecast | None:
    """Return when a running or waiting job ends, judged by recent jobs; None: unknown."""
    running = facts.state is JobState.RUNNING and facts.started_at is not None
    for_seconds = facts.now - facts.started_at if running and facts.started_at is not None else 0.0
    start = Forecast(earliest=facts.now, latest=facts.now) if running else forecast_start(facts)
    lasts = remaining_range(facts.repository, max(0.0, for_seconds), facts.recent)
    if start is None or lasts is None:
        return None
    shortest, longest = lasts
    return Forecast(earliest=start.earliest + shortest, latest=start.latest + longest)


def _after_all(others: Sequence[WaitFacts | None]) -> Forecast | None:
    """Return when the last of these jobs has ended, without the wait for a slot."""
    last_end: Forecast | None = None
    for each in others:
        end = None if each is None else forecast_end(each)
        if end is None:
            return None
        last_end = end if last_end is None else later_forecast(last_end, end)
    return last_end


def _after_group(facts: WaitFacts) -> Forecast | None:
    """Return when the holder of the group and the members before this job have ended.

    Each is assumed to last as long as the holder.
    """
    end = _after_all(facts.group_jobs)
    if end is None:
        return None
    begun = [each.started_at for each in facts.group_jobs if each is not None and each.started_at is not None]
    since, behind = min(begun, default=facts.now), len(facts.group_ahead) - 1
    return Forecast(
        earliest=end.earliest + behind * (end.earliest - since),
        latest=end.latest + behind * (end.latest - since),
    )


def bounds(facts: WaitFacts) -> list[StartBound]:
    """Return the waits for each rate, and for the quota of its owner."""
    waits = []
    for throttle in facts.throttles:
        key, of_label = throttle.key, throttle.key.scope is BucketScope.LABEL
        ahead = facts.ahead if of_label else facts.ahead_of_repository
        waits.append(
            StartBound(
                resource=key.scope.value,
                who=f"the label {key.name}" if of_label else key.name,
                limit=throttle.rate.text,
                seconds=seconds_until(throttle.tokens, throttle.rate, ahead + 1),
            )
        )
    if facts.owner_hour is not None:
        hour, starts = facts.owner_hour, facts.ahead_of_owner + 1
        waits.append(
            StartBound(
                resource=OWNER,
                who=facts.owner,
                limit=f"{hour.quota} in any hour",
                seconds=quotas.seconds_until(hour.started, hour.quota, facts.now, starts),
            )
        )
    return waits


def later_forecast(one: Forecast, other: Forecast) -> Forecast:
    """Return the later of both forecasts, in each end of the range."""
    return Forecast(earliest=max(one.earliest, other.earliest), latest=max(one.latest, other.latest))


def _slot_within_limits(facts: WaitFacts) -> Forecast | None:
    """Return when a slot is free and its repository and owner have room."""
    if facts.ahead >= COUNTED:
        return None
    serving = active(facts.workers)
    ids = {worker.worker_id for worker in serving}
    running = [each for each in facts.running if each.worker_id in ids]
    slots = len(running) + sum(free_slots(worker, facts.runs_on) for worker in serving)
    own = facts.ahead_of_repository
    waits = [(slots, running, facts.ahead)]
    if facts.cap is not None:
        waits.append((facts.cap, list(facts.running_of_repository), own))
    if facts.owner_cap is not None:
        waits.append((facts.owner_cap, list(facts.running_of_owner), facts.ahead_of_owner))
    start: Forecast | None = Forecast(earliest=facts.now, latest=facts.now)
    for most, holders, ahead in waits:
        jobs_ahead = JobsAhead(repository=facts.repository, own=own, others=ahead - own)
        within_limits = forecast_slot(facts.now, most, _busy(holders, facts.now), jobs_ahead, facts.recent)
        start = start and within_limits and later_forecast(start, within_limits)
    return start


def _busy(holders: Iterable[Holder], now: float) -> list[BusySlot]:
    return [
        BusySlot(
            repository=each.repository,
            for_seconds=0.0 if each.started_at is None else max(0.0, now - each.started_at),
        )
        for each in holders
    ]
