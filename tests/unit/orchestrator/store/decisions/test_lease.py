"""The answer to a holder that renews its leases."""

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.workers import DesiredWorkerState, WorkerState
from solstice_orchestrator.store.decisions.lease import renewal
from solstice_orchestrator.store.decisions.worker_records import WorkerRow
from solstice_orchestrator.store.protocol import AttemptKey

NOW = 1000.0
WORKER = WorkerRow(
    worker_id="w-1",
    name="w",
    host="quay",
    version="1",
    slots="{}",
    slot_limit=2,
    ordered=DesiredWorkerState.WORK,
    failures=3,
    quarantined_until=NOW + 5,
    started_at=0.0,
    seen_at=NOW,
    ended_at=None,
)


def attempt(number: int) -> AttemptKey:
    return AttemptKey(job_id="j", number=number)


def test_what_was_taken_away_is_lost_and_what_its_holder_ended_is_not() -> None:
    claimed = [attempt(number) for number in range(1, 7)]
    ended = {
        attempt(3): Reason.COMPLETED,
        attempt(4): Reason.AGENT_LOST,
        attempt(5): Reason.LEASE_EXPIRED,
    }
    found = renewal(claimed, {attempt(1): False, attempt(2): True}, ended, WORKER, NOW)
    assert found.lost == {attempt(4), attempt(5), attempt(6)}
    assert found.cancelled == {attempt(2)}


def test_the_holder_learns_what_its_worker_may_do() -> None:
    found = renewal([], {}, {}, WORKER, NOW)
    assert (found.state, found.quarantined_until) == (WorkerState.QUARANTINED, NOW + 5)
    assert found.registered
    later = renewal([], {}, {}, WORKER._replace(name="", ordered=DesiredWorkerState.DRAIN), NOW + 5)
    assert (later.state, later.registered) == (WorkerState.DRAINING, False)
