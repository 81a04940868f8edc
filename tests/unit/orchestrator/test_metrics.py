"""Every fact that is recorded can be read."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from solstice_common.broker.protocol import BrokerHealth, PublishStatus, QueueDepth
from solstice_common.messages import Priority
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.queue_times.forecast import ForecastAccuracy, ForecastCheck
from solstice_orchestrator.queue_times.waits import WaitingClass

CONNECTED = BrokerHealth(connected=True)
FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=1)


def samples(metrics: Metrics, broker: BrokerHealth = CONNECTED) -> set[str]:
    text = metrics.render({}, broker).decode()
    return {line for line in text.splitlines() if line.startswith("solstice_") and "_created" not in line}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            lambda m: m.requests_admitted(3, Priority.HIGH),
            'solstice_requests_total{priority="high",reason="",verdict="admitted"} 3.0',
        ),
        (
            lambda m: m.attempt_finished("linux", replace(FAILED, egress=(("host_refused", 2),)), 1),
            'solstice_egress_requests_total{result="host_refused"} 2.0',
        ),
        (
            lambda m: m.requests_duplicate(),
            'solstice_requests_total{priority="default",reason="",verdict="duplicate"} 1.0',
        ),
        (
            lambda m: m.request_refused("not_json", Priority.LOW),
            'solstice_requests_total{priority="low",reason="not_json",verdict="refused"} 1.0',
        ),
        (
            lambda m: m.request_refused("not_json", Priority.LOW),
            'solstice_dead_letters_total{priority="low"} 1.0',
        ),
        (
            lambda m: m.request_dead(Priority.CRITICAL),
            'solstice_dead_letters_total{priority="critical"} 1.0',
        ),
        (
            lambda m: m.job_started("linux", 0.2),
            'solstice_job_wait_seconds_sum{label="linux",priority="default"} 0.2',
        ),
        (
            lambda m: m.job_started("linux", -1.0, Priority.HIGH),
            'solstice_job_wait_seconds_sum{label="linux",priority="high"} 0.0',
        ),
        (
            lambda m: m.attempt_finished("linux", FAILED, 2.0),
            'solstice_attempts_finished_total{reason="step_failed",state="failed"} 1.0',
        ),
        (
            lambda m: m.attempt_finished("linux", FAILED, 2.0),
            'solstice_job_run_seconds_sum{label="linux",state="failed"} 2.0',
        ),
        (
            lambda m: m.started_as_expected(
                ForecastCheck(accuracy=ForecastAccuracy.LATE, error_seconds=40.0)
            ),
            'solstice_expected_starts_total{met="late"} 1.0',
        ),
        (
            lambda m: m.started_as_expected(
                ForecastCheck(accuracy=ForecastAccuracy.LATE, error_seconds=40.0)
            ),
            "solstice_expected_start_error_seconds_sum 40.0",
        ),
        (
            lambda m: m.job_retried("linux", Priority.HIGH),
            'solstice_retries_total{label="linux",priority="high"} 1.0',
        ),
        (lambda m: m.leases_renewed(4), "solstice_lease_renewals_total 4.0"),
        (lambda m: m.leases_lost(), "solstice_leases_lost_total 1.0"),
        (
            lambda m: m.outbox_published(PublishStatus.UNKNOWN, 2),
            'solstice_outbox_publishes_total{status="unknown"} 2.0',
        ),
    ],
)
def test_recorded_fact_is_rendered(record: Callable[[Metrics], None], expected: str) -> None:
    metrics = Metrics()
    assert expected not in samples(metrics)
    record(metrics)
    assert expected in samples(metrics)


def test_without_dead_letters_none_is_counted() -> None:
    metrics = Metrics(dead_letter_enabled=False)
    metrics.request_refused("not_json", Priority.LOW)
    assert 'solstice_dead_letters_total{priority="low"} 0.0' in samples(metrics)
    assert 'solstice_requests_total{priority="low",reason="not_json",verdict="refused"} 1.0' in samples(
        metrics
    )


def test_gauges_are_as_of_now() -> None:
    metrics = Metrics()
    assert b'solstice_jobs{label="linux",state="waiting"} 2.0' in metrics.render(
        {(JobState.WAITING, "linux"): 2}, CONNECTED
    )
    waiting = {Priority.LOW: WaitingClass(3, 61.5)}
    text = metrics.render({}, CONNECTED, waiting=waiting).decode()
    assert 'solstice_jobs_waiting{priority="low"} 3.0' in text
    assert 'solstice_jobs_waiting_oldest_seconds{priority="low"} 61.5' in text
    gone = samples(metrics, BrokerHealth(connected=False, blocked="memory"))
    assert {
        'solstice_jobs_waiting{priority="low"} 0.0',
        'solstice_jobs_waiting_oldest_seconds{priority="low"} 0.0',
    } <= gone
    assert not any(sample.startswith("solstice_jobs{") for sample in gone)
    assert {"solstice_broker_connected 0.0", "solstice_broker_blocked 1.0"} <= gone


def test_two_orchestrators_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.leases_lost()
    assert "solstice_leases_lost_total 0.0" in samples(other)


def test_declared_metrics_are_those_that_are_rendered() -> None:
    metrics = Metrics()
    text = metrics.render({}, CONNECTED).decode()
    typed = {tuple(line.split()[2:]) for line in text.splitlines() if line.startswith("# TYPE solstice_")}
    declared = {(metric.name, metric.type) for metric in metrics.declared()}
    assert {pair for pair in typed if not pair[0].endswith("_created")} == declared


def test_queues_are_shown_by_transport_as_far_as_the_broker_reports_them() -> None:
    metrics = Metrics()
    full = QueueDepth(ready=3, consumers=1, pending=2, oldest_seconds=1.5, lease_seconds=20.0)
    metrics.queues("redis", {"jobs": full, "dead": QueueDepth(ready=0, consumers=0)})
    shown = metrics.render({}, CONNECTED).decode()
    assert 'solstice_queue_depth{queue="jobs",transport="redis"} 3.0' in shown
    assert 'solstice_queue_pending{queue="jobs",transport="redis"} 2.0' in shown
    assert 'solstice_queue_oldest_seconds{queue="jobs",transport="redis"} 1.5' in shown
    assert 'solstice_queue_lease_seconds{queue="jobs",transport="redis"} 20.0' in shown
    assert 'solstice_queue_depth{queue="dead",transport="redis"} 0.0' in shown
    assert 'solstice_queue_pending{queue="dead"' not in shown
    metrics.queues("redis", {})
    assert "solstice_queue_depth{" not in metrics.render({}, CONNECTED).decode()
