"""Decides what a due tick becomes: claimed, released, fired, skipped or failed. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobRequestV1
from solstice_common.messages.schedules import Overlap
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.values.repo_urls import full_name_of
from solstice_orchestrator.schedules.ticks import (
    ON_TIME_SECONDS,
    RETRY_BASE_SECONDS,
    RETRY_CAP_SECONDS,
    TickReason,
    TickState,
)
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.records.schedule_rows import Schedule, Tick
from solstice_orchestrator.store.schedule_store import TickTask

EVENT: Final = "schedule"
_MAX_DETAIL: Final = 1000

DecideTick = Callable[[Moment, Schedule, Tick], JobRequestV1 | Tick | None]
"""Decides the result of a tick: its new row, a request whose run it becomes, or nothing."""

DecideClaim = Callable[[Moment, Schedule, Tick, Mapping[str, str]], Tick]
"""Decides the result of a due tick, given the unfinished run of each schedule that has one."""


def claimed(moment: Moment, worker_id: str, schedule: Schedule, tick: Tick, busy: Mapping[str, str]) -> Tick:
    """Claim the tick for the worker, or skip it when a run has not ended.

    `busy`: the unfinished run of each schedule that has one.
    """
    if schedule.overlap is Overlap.SKIP and not tick.by_hand and schedule.schedule_id in busy:
        detail = f"run {busy[schedule.schedule_id]} of its schedule had not ended"
        return ended(tick, moment, TickState.SKIPPED, TickReason.STILL_RUNNING, detail)
    return tick._replace(
        attempt=tick.attempt + 1, lease_until=moment.now + moment.rules.lease_seconds, worker_id=worker_id
    )


def released(tick: Tick, now: float) -> Tick:
    """Release the tick, so that any worker can claim it."""
    return tick._replace(lease_until=None, worker_id=None, retry_at=now)


def is_claimed(tick: Tick, task: TickTask) -> bool:
    """Return whether this attempt still holds the tick."""
    return tick.state is TickState.DUE and tick.attempt == task.attempt and tick.lease_until is not None


def request_or_tick(
    moment: Moment, schedule: Schedule, tick: Tick, task: TickTask, commit_sha: str
) -> JobRequestV1 | Tick | None:
    """Return the request to admit, or the settled tick. None when fenced.

    The tick is settled when this attempt has already fired it and its holder did not receive the answer, or when its
    request would be invalid.
    """
    if tick.state is TickState.FIRED and tick.attempt == task.attempt:
        return tick
    if not is_claimed(tick, task):
        return None
    try:
        return request_of(moment, schedule, tick, commit_sha)
    except InvalidMessage as error:
        return not_fired(tick, moment, TickReason.NOT_A_REQUEST, error.detail, retry=False)


def request_of(moment: Moment, schedule: Schedule, tick: Tick, commit_sha: str) -> JobRequestV1:
    """Return the tick's request, with the same request id and key every time.

    It is submitted now, even if the tick was due earlier: it is about what the branch holds now. Raises InvalidMessage.
    """
    fields: dict[str, object] = {
        "schema_version": JobRequestV1.VERSION,
        "request_id": tick.tick_id,
        "source": "manual",
        "event": EVENT,
        "repo_url": schedule.repo_url,
        "repo_full_name": schedule.repo_full_name or full_name_of(schedule.repo_url),
        "commit_sha": commit_sha,
        "ref": schedule.ref,
        "submitted_at": moment.stamp,
        "workflow_path": schedule.workflow_path,
        "workflow_job_id": schedule.workflow_job_id,
        "runs_on": schedule.runs_on,
        "priority": schedule.priority,
        "sender": schedule.created_by,
        # A token that may add a schedule may run code here: its scope says so.
        "trusted": True,
        "idempotency_key": f"{EVENT}:{tick.tick_id}",
    }
    try:
        request, _ = JobRequestV1.compose(
            {name: value for name, value in fields.items() if value is not None}
        )
    except ValueError as error:
        raise InvalidMessage("invalid_field", str(error)) from None
    return request


def fired(tick: Tick, moment: Moment, run_id: str, commit_sha: str) -> Tick:
    """Return the tick that became a run."""
    is_late = tick.reason is TickReason.ON_TIME and moment.now - tick.tick_at > ON_TIME_SECONDS
    reason = TickReason.LATE if is_late else tick.reason
    return ended(tick, moment, TickState.FIRED, reason, "")._replace(run_id=run_id, commit_sha=commit_sha)


def not_fired(tick: Tick, moment: Moment, reason: TickReason, detail: str, *, retry: bool) -> Tick:
    """Return the tick that could not fire: due again later, or failed."""
    failures = tick.failures + 1
    if not retry or tick.by_hand:
        return ended(tick, moment, TickState.FAILED, reason, detail)._replace(failures=failures)
    pause = backoff_seconds(
        tick.failures,
        rng=moment.rules.rng,
        base_seconds=RETRY_BASE_SECONDS,
        cap_seconds=RETRY_CAP_SECONDS,
    )
    return released(tick, moment.now + pause)._replace(failures=failures, detail=detail[:_MAX_DETAIL])


def ended(tick: Tick, moment: Moment, state: TickState, reason: TickReason, detail: str) -> Tick:
    """Return the tick in a final state."""
    return tick._replace(
        state=state,
        reason=reason,
        detail=detail[:_MAX_DETAIL],
        lease_until=None,
        retry_at=None,
        settled_at=moment.now,
    )
