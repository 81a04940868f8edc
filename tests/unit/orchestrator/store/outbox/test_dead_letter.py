"""The history of attempts in a dead letter."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.headers import RUN_HEADER, SIGNATURE_HEADER
from solstice_common.broker.rabbitmq.frames import content_header
from solstice_common.broker.rabbitmq.properties import of_message
from solstice_common.messages.states import JobState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import jobs_route
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Reason
from solstice_orchestrator.stages.outbox_relay import message_of
from solstice_orchestrator.store.outbox.dead_letter import (
    MAX_DETAIL,
    MAX_HISTORY,
    dead_letter_headers,
    runs_of_dead_letters,
    with_signatures,
)
from solstice_orchestrator.store.protocol import OutboxKind, OutboxMessage
from solstice_orchestrator.store.records.changes import Attempt


def attempt(number: int, reason: Reason, detail: str = "") -> Attempt:
    return Attempt(
        job_id="0b6f7a52-3c1f-4f6e-9b1e-2f3a4b5c6d7e",
        number=number,
        worker_id="quay:1:aa",
        state=JobState.ERRORED,
        reason=reason,
        started_at=1_800_000_000.0,
        finished_at=1_800_000_060.0,
        exit_code=None,
        step=None,
        detail=detail,
    )


def test_every_attempt_is_reported_in_order_also_those_that_the_job_failed_itself() -> None:
    headers = dead_letter_headers(
        [
            ("test", attempt(1, Reason.STEP_FAILED, "step 'a' ended with exit code 1")),
            ("test", attempt(2, Reason.AGENT_LOST, "held by quay:1:aa")),
        ],
        None,
        "",
    )
    assert headers is not None
    assert (headers["x-solstice-reason"], headers["x-solstice-detail"]) == ("agent_lost", "held by quay:1:aa")
    when = "2027-01-15T08:00:00.000Z to 2027-01-15T08:01:00.000Z"
    assert headers["x-solstice-history"].splitlines() == [
        f"test #1 on quay:1:aa, {when}: step_failed (step 'a' ended with exit code 1)",
        f"test #2 on quay:1:aa, {when}: agent_lost (held by quay:1:aa)",
    ]


def test_only_a_dead_letter_of_a_signed_request_carries_its_signature() -> None:
    messages = [
        OutboxMessage(number=number, request_id="r", body=b"{}", kind=kind, headers={RUN_HEADER: run_id})
        for number, (kind, run_id) in enumerate(
            [
                (OutboxKind.DEAD_LETTER, "signed"),
                (OutboxKind.DEAD_LETTER, "unsigned"),
                (OutboxKind.STATUS, "signed"),
            ]
        )
    ]
    assert runs_of_dead_letters(messages) == ["signed", "unsigned"]
    first, *others = with_signatures(messages, {"signed": "by otter"})
    assert first.headers == {RUN_HEADER: "signed", SIGNATURE_HEADER: "by otter"}
    assert others == messages[1:]


def test_long_details_push_no_attempt_out() -> None:
    headers = dead_letter_headers(
        [("test", attempt(n, Reason.CHECKOUT_FAILED, "x" * 4000)) for n in range(1, 9)], None, ""
    )
    assert headers is not None
    lines = headers["x-solstice-history"].splitlines()
    assert [line.split()[1] for line in lines] == [f"#{n}" for n in range(1, 9)]


def test_a_history_that_is_too_long_has_its_beginning_and_its_end_and_counts_the_rest() -> None:
    tries = [("test", attempt(number, Reason.AGENT_LOST, "x" * 300)) for number in range(1, 101)]
    headers = dead_letter_headers(tries, None, "")
    assert headers is not None
    history = headers["x-solstice-history"]
    lines = history.splitlines()
    # As many of the first as of the last, or one more; there was no room for another.
    last = (len(lines) - 1) // 2
    first = len(lines) - 1 - last
    answered = [*range(1, first + 1), *range(101 - last, 101)]
    assert [line.split()[1] for line in lines if line.startswith("test")] == [
        f"#{number}" for number in answered
    ]
    assert lines[first] == f"... {100 - len(answered)} attempts more ..."
    assert MAX_HISTORY - 64 - len(lines[0]) <= len(history) <= MAX_HISTORY


def test_a_detail_that_just_fits_is_left_whole() -> None:
    headers = dead_letter_headers([], Reason.CHECKOUT_FAILED, "x" * MAX_DETAIL)
    assert headers is not None
    assert headers["x-solstice-detail"] == "x" * MAX_DETAIL


def test_what_the_world_has_not_failed_is_no_dead_letter() -> None:
    assert dead_letter_headers([("test", attempt(1, Reason.STEP_FAILED))], None, "") is None
    assert dead_letter_headers([], Reason.INVALID_WORKFLOW, "no jobs") is None


def test_a_run_that_could_not_be_planned_says_why_itself() -> None:
    headers = dead_letter_headers([], Reason.CHECKOUT_FAILED, "no route to host")
    assert headers is not None
    assert headers["x-solstice-detail"] == "no route to host"


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(INFRASTRUCTURE)), st.text(max_size=600)), min_size=1, max_size=200
    )
)
def test_the_history_fits_and_has_the_first_and_the_last(ends: list[tuple[Reason, str]]) -> None:
    tries = [("test", attempt(number, *end)) for number, end in enumerate(ends, start=1)]
    headers = dead_letter_headers(tries, None, "")
    assert headers is not None
    history = headers["x-solstice-history"]
    assert len(history.encode()) <= MAX_HISTORY
    reported = [line for line in history.split("\n") if line.startswith("test #")]
    assert reported[0].startswith("test #1 ")
    assert reported[-1].startswith(f"test #{len(ends)} ")
    missing = [line for line in history.split("\n") if line.startswith("... ")]
    assert len(reported) + sum(int(line.split()[1]) for line in missing) == len(ends)


def test_a_dead_letter_of_the_outbox_fits_the_smallest_frame_of_rabbitmq_4() -> None:
    """A dead letter that does not fit is refused forever, and blocks the outbox."""
    wide = "錨" * 4000
    headers = dead_letter_headers(
        [("錨" * 80, attempt(number, Reason.CHECKOUT_FAILED, wide)) for number in range(1, 400)],
        Reason.CHECKOUT_FAILED,
        wide,
    )
    assert headers is not None
    run_id = "0b6f7a52-3c1f-4f6e-9b1e-2f3a4b5c6d7e"
    outbox_message = OutboxMessage(
        number=1,
        kind=OutboxKind.DEAD_LETTER,
        request_id=run_id,
        body=b"{}",
        headers={**headers, "x-solstice-run": run_id, "x-solstice-refused-at": "2027-01-15T08:00:00.000Z"},
    )
    message = message_of(outbox_message, jobs_route(BrokerSettings.model_construct()))
    assert len(content_header(of_message(message)("1" * 36), 2)) <= 8192 - 8
