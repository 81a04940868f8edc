"""What becomes of a tick that is due: claimed, released, fired, skipped or failed. Pure."""

from collections.abc import Mapping
from typing import Final

from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobRequestV1
from solstice_common.messages.schedules import Overlap
from solstice_common.repo_urls import full_name_of
from solstice_common.runtime.backoff import backoff_seconds
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


def claimed(moment: Moment, worker_id: str, schedule: Schedule, tick: Tick, busy: Mapping[str, str]) -> Tick:
    """The tick in somebody's hands, or skipped for the sake of a run of its schedule.

    `busy`: of the schedules that have a run that has not ended, which one.
    """
    if schedule.overlap is Overlap.SKIP and not tick.by_hand and schedule.schedule_id in busy:
        detail = f"run {busy[schedule.schedule_id]} of its schedule had not ended"
        return ended(tick, moment, TickState.SKIPPED, TickReason.STILL_RUNNING, detail)
    return tick._replace(
        attempt=tick.attempt + 1, lease_until=moment.now + moment.rules.lease_seconds, worker_id=worker_id
    )


def released(tick: Tick, now: float) -> Tick:
    """The tick in nobody's hands."""
    return tick._replace(lease_until=None, worker_id=None, retry_at=now)


def is_claimed(tick: Tick, task: TickTask) -> bool:
    """Whether the tick is still in the hands of this attempt."""
    return tick.state is TickState.DUE and tick.attempt == task.attempt and tick.lease_until is not None


def firing(
    moment: Moment, schedule: Schedule, tick: Tick, task: TickTask, commit_sha: str
) -> JobRequestV1 | Tick | None:
    """What is to be admitted for it; or the tick as it stands without that; None when fenced.

    The tick stands already when this attempt has fired it, of which its holder did not hear, and when what it would ask
    for cannot be asked for.
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
    """What the tick asks for; the same tick has the same request id and key, however often it is tried.

    It was asked for now, whenever it was due: it is about what the branch holds now. Raises InvalidMessage.
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
        # Whoever may add a schedule may run code here: that is what the scope says.
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
    """The tick that became a run."""
    is_late = tick.reason is TickReason.ON_TIME and moment.now - tick.tick_at > ON_TIME_SECONDS
    reason = TickReason.LATE if is_late else tick.reason
    return ended(tick, moment, TickState.FIRED, reason, "")._replace(run_id=run_id, commit_sha=commit_sha)


def not_fired(tick: Tick, moment: Moment, reason: TickReason, detail: str, *, retry: bool) -> Tick:
    """The tick that could not become one, for now or for ever."""
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
    """The tick that is due no more."""
    return tick._replace(
        state=state,
        reason=reason,
        detail=detail[:_MAX_DETAIL],
        lease_until=None,
        retry_at=None,
        settled_at=moment.now,
    )
