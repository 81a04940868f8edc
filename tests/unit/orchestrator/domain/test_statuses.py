"""Words and bytes of statuses, and the outbox's use of a group's outcomes."""

import dataclasses
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from solstice_common.broker.protocol import Published, PublishStatus
from solstice_common.messages import JobStatusV1
from solstice_common.messages.states import JobState, RunState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, Route, split_jobs_route
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.statuses import (
    Status,
    context_of,
    describe_delayed,
    describe_job,
    describe_run,
    detail_of,
    encode_status,
    read_subject,
    status_about,
)
from solstice_orchestrator.stages.outbox_relay import message_of, numbers_done
from solstice_orchestrator.store.protocol import OutboxKind, OutboxMessage
from tests.builders import job_request

JOBS = Route(exchange="jobs", queue="jobs.v1", routing_key="jobrequest.v1", dlx="dead", dlq="dead.v1")
CONFIRMED, UNKNOWN = Published(PublishStatus.CONFIRMED), Published(PublishStatus.UNKNOWN)


def row(number: int, request_id: str = "r", kind: OutboxKind = OutboxKind.STATUS) -> OutboxMessage:
    return OutboxMessage(
        number=number,
        request_id=request_id,
        body=b"{}",
        kind=kind,
        headers={"x-solstice-reason": "agent_lost"},
    )


def test_the_short_way_knows_every_field_in_canonical_order() -> None:
    assert list(Status.__struct_fields__) == sorted(JobStatusV1.model_fields)


def test_a_field_that_is_none_is_left_out() -> None:
    subject: dict[str, Any] = dict.fromkeys(("commit_sha", "repo_url", "request_id", "source"), "x")
    optional: dict[str, Any] = dict.fromkeys(set(Status.__struct_fields__) - {*subject, "schema_version"})
    body = encode_status(Status(schema_version="jobstatus.v1", **subject, **optional))
    assert orjson.loads(body) == {"schema_version": "jobstatus.v1", **subject}


def test_the_short_way_gives_the_canonical_bytes() -> None:
    request = job_request(
        change_number=3, source_name="main", delivery_id="d", later={"unknown": 10**400, "state": "no"}
    )
    about = status_about(request)
    assert status_about(read_subject(request.encode())) == about
    status = replace(
        about,
        status_id=request.request_id,
        run_id=request.request_id,
        sequence=1,
        context="solstice",
        state="planning",
        description='Ünïcode "quoted" \x00\x1b\x7f\u2028\\',
        occurred_at="2026-03-01T12:00:00.000Z",
        target_url=None,
    )
    body = encode_status(status)
    assert JobStatusV1.decode(body).encode() == body


@pytest.mark.parametrize(
    ("state", "reason", "detail", "words"),
    [
        (JobState.WAITING, Reason.PLANNED, "", "Waits for a free slot on linux"),
        (JobState.WAITING, Reason.NEEDS_MET, "", "Waits for a free slot on linux"),
        (
            JobState.WAITING,
            Reason.RELEASED,
            "",
            "Handed back by an orchestrator that shut down; waits for a free slot again",
        ),
        (JobState.WAITING, Reason.RETRYING, "", "Waits for a free slot on linux"),
        (
            JobState.WAITING,
            Reason.RETRYING,
            "step 'make' failed; try 2 of 3",
            "Step 'make' failed; try 2 of 3",
        ),
        (JobState.BLOCKED, Reason.PLANNED, "", "Waits for the jobs that it needs"),
        (JobState.BLOCKED, Reason.CONCURRENCY_GROUP, "", "Waits for its concurrency group"),
        (JobState.APPROVAL, Reason.PLANNED, "", "Waits for approval"),
        (JobState.RUNNING, Reason.CLAIMED, "", "Runs, attempt 4"),
        (JobState.SUCCEEDED, Reason.COMPLETED, "", "Succeeded"),
        (
            JobState.FAILED,
            Reason.STEP_FAILED,
            "step 'make' ended with exit code 2",
            "Failed: step 'make' ended with exit code 2",
        ),
        (
            JobState.BACKOFF,
            Reason.AGENT_LOST,
            "",
            "The orchestrator that ran it is gone; it will be tried again",
        ),
        (
            JobState.ERRORED,
            Reason.CHECKOUT_FAILED,
            "no route",
            "The commit could not be fetched (after 3 attempts): no route",
        ),
        (JobState.ERRORED, Reason.COMMIT_NOT_FOUND, "", "The commit cannot be found"),
        (JobState.TIMED_OUT, Reason.JOB_TIMEOUT, "", "The job took longer than it may"),
        (JobState.CANCELLED, Reason.CANCEL_REQUESTED, "", "Cancelled"),
        (JobState.SKIPPED, Reason.NEEDS_FAILED, "", "Skipped: a job that it needs did not succeed"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_job_says_in_words_where_it_stands(
    state: JobState, reason: Reason, detail: str, words: str
) -> None:
    assert describe_job(state, reason, detail=detail, runs_on="linux", attempt=4, failures=3) == words


@given(st.sampled_from(JobState), st.sampled_from(Reason), st.text(max_size=5000))
def test_every_transition_has_words_that_fit(state: JobState, reason: Reason, detail: str) -> None:
    assert 0 < len(describe_job(state, reason, detail=detail, runs_on="linux", attempt=1)) <= 1000


def test_words_that_do_not_fit_end_in_an_ellipsis() -> None:
    fits = describe_run(RunState.ERRORED, "x" * 991, ())
    assert (len(fits), fits[-1]) == (1000, "x")
    cut = describe_run(RunState.ERRORED, "x" * 992, ())
    assert (len(cut), cut[-2:]) == (1000, "x…")


def test_the_first_attempt_is_not_numbered() -> None:
    assert describe_job(JobState.RUNNING, Reason.CLAIMED, detail="", runs_on="linux", attempt=1) == "Runs"


def test_a_run_says_what_its_jobs_are_at() -> None:
    jobs = [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    assert describe_run(RunState.FAILED, "", jobs) == "3 jobs: 2 succeeded, 1 failed"
    assert describe_run(RunState.ERRORED, "line 2: what?", ()) == "Errored: line 2: what?"
    assert describe_run(RunState.TIMED_OUT, "", [JobState.TIMED_OUT]) == "1 job: 1 timed out"
    assert describe_run(RunState.TIMED_OUT, "after an hour", ()) == "Timed out: after an hour"
    assert describe_run(RunState.PLANNING, "", ()) == "Accepted; its workflow will be read next"
    assert describe_run(RunState.SUCCEEDED, "", ()) == "No jobs"


def test_a_delayed_run_says_when_it_starts() -> None:
    assert describe_delayed(1_772_366_400.0) == "Accepted; it starts at 2026-03-01T12:00:00.000Z"


@pytest.mark.parametrize(
    ("reason", "step", "detail"),
    [
        (Reason.STEP_TIMEOUT, "make", "step 'make' took longer than it may"),
        (Reason.STEP_FAILED, "make", "step 'make' ended with exit code 2"),
        (Reason.STEP_FAILED, None, ""),
        (Reason.NO_OUTPUT, "make", ""),
    ],
)
def test_an_outcome_without_a_detail_names_its_step(reason: Reason, step: str | None, detail: str) -> None:
    outcome = Outcome(state=JobState.FAILED, reason=reason, step=step, exit_code=2)
    assert detail_of(outcome) == detail


def test_no_detail_breaks_a_database_or_a_message() -> None:
    outcome = Outcome(state=JobState.ERRORED, reason=Reason.EXECUTOR_FAILED, detail="\udc80a\0b" + "x" * 9999)
    detail = detail_of(outcome)
    assert detail.startswith("?a\ufffdb")
    assert len(detail.encode()) < 5000


def test_a_long_job_name_still_is_a_context() -> None:
    assert len(context_of("x" * 400)) == 255


def test_statuses_and_dead_letters_take_their_own_ways() -> None:
    status, dead_letter = message_of(row(1), JOBS), message_of(row(2, kind=OutboxKind.DEAD_LETTER), JOBS)
    assert (status.exchange, status.routing_key, status.type) == (
        STATUSES.exchange,
        "jobstatus.v1",
        "jobstatus.v1",
    )
    assert (dead_letter.exchange, dead_letter.routing_key, dead_letter.type) == (
        "dead",
        "jobrequest.v1",
        "jobrequest.v1",
    )
    assert dead_letter.headers["x-solstice-reason"] == "agent_lost"
    assert (status.priority, dead_letter.priority) == (None, 4)


@pytest.mark.parametrize(
    ("body", "exchange", "number"),
    [
        (b'{"priority":"critical"}', "solstice.dlx.critical", 9),
        (b'{"priority":"low"}', "solstice.dlx.low", 1),
        (b"{}", "solstice.dlx", 4),
    ],
    ids=["critical", "low", "none"],
)
def test_dead_letter_goes_to_those_of_its_request_class(body: bytes, exchange: str, number: int) -> None:
    spoiled = dataclasses.replace(row(1, kind=OutboxKind.DEAD_LETTER), body=body)
    split = message_of(spoiled, split_jobs_route(BrokerSettings.model_construct()))
    assert (split.exchange, split.priority, split.type) == (exchange, number, "jobrequest.v1")
    one = message_of(spoiled, JOBS)
    assert (one.exchange, one.priority) == ("dead", number)


def test_what_was_confirmed_behind_a_gap_is_reported_again() -> None:
    rows = [row(1, "a"), row(2, "b"), row(3, "a"), row(4, "b"), row(5, "c")]
    assert numbers_done(rows, [CONFIRMED, UNKNOWN, CONFIRMED, CONFIRMED, CONFIRMED]) == [1, 3, 5]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
def test_nothing_is_done_with_before_what_came_before_it(reports: list[tuple[str, bool]]) -> None:
    rows = [row(number, request) for number, (request, _) in enumerate(reports)]
    done = set(numbers_done(rows, [CONFIRMED if confirmed else UNKNOWN for _, confirmed in reports]))
    for each in rows:
        if each.number in done:
            before = [
                other for other in rows if other.request_id == each.request_id and other.number <= each.number
            ]
            assert all(reports[other.number][1] and other.number in done for other in before)
