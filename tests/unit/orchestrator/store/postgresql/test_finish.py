"""The pure parts of ends in one statement."""

import random
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store.decisions.finish import AttemptEnd
from solstice_orchestrator.store.postgresql.finish import REMEMBERED, ClaimCache, SingleJobRun, end_at_once
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.moment import StoreRules
from tests.builders import run_of_one_job

DONE = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


async def test_rows_are_locked_in_one_order_for_any_order_of_ends() -> None:
    rng = random.Random(1)
    database = AsyncMock()
    database.at_once.return_value = [{"now": 5.0}]
    ended = [run_of_one_job(number) for number in (3, 1, 2)]
    group = [(AttemptEnd(AttemptKey(job_id=each.job.job_id, number=1), DONE), each) for each in ended]
    rules = StoreRules(new_id=id_source(rng), rng=rng)
    assert await end_at_once(database, rules, 4.0, group, needs_now=False) == 5.0
    _, *arguments = database.at_once.await_args.args
    assert "run-1\nrun-2\nrun-3" in arguments
    assert "job-8\njob-7\njob-6" in arguments


def key(single_job_run: SingleJobRun) -> AttemptKey:
    return AttemptKey(job_id=single_job_run.job.job_id, number=single_job_run.job.attempt)


def known_run(single_job_run: SingleJobRun, outcome: Outcome = DONE) -> SingleJobRun | None:
    """The cached facts about an attempt at its end."""
    in_hand = ClaimCache()
    in_hand.keep([single_job_run])
    return in_hand.take(key(single_job_run), outcome)


@pytest.mark.parametrize(
    ("single_job_run", "known"),
    [
        pytest.param(run_of_one_job(1), True, id="alone"),
        pytest.param(
            SingleJobRun(
                replace(run_of_one_job(1).run, group_key=b"g"),
                run_of_one_job(1).job,
                run_of_one_job(1).subject,
            ),
            False,
            id="run-in-group",
        ),
        pytest.param(
            SingleJobRun(
                run_of_one_job(1).run,
                replace(run_of_one_job(1).job, group_key=b"g"),
                run_of_one_job(1).subject,
            ),
            False,
            id="job-in-group",
        ),
        pytest.param(
            SingleJobRun(
                run_of_one_job(1).run, replace(run_of_one_job(1).job, failures=1), run_of_one_job(1).subject
            ),
            False,
            id="failed-before",
        ),
        pytest.param(
            SingleJobRun(
                replace(run_of_one_job(1).run, request=b" " * 10**6),
                run_of_one_job(1).job,
                run_of_one_job(1).subject,
            ),
            False,
            id="large",
        ),
    ],
)
def test_what_an_end_would_change_elsewhere_is_not_remembered(
    single_job_run: SingleJobRun, known: bool
) -> None:
    assert known_run(single_job_run) == (single_job_run if known else None)


@pytest.mark.parametrize(
    ("reason", "known"), [(Reason.COMPLETED, True), (Reason.RELEASED, False), (Reason.AGENT_LOST, False)]
)
def test_an_end_for_which_more_is_looked_at_is_not_as_known(reason: Reason, known: bool) -> None:
    assert (known_run(run_of_one_job(1), Outcome(state=JobState.ERRORED, reason=reason)) is not None) is known


def test_what_is_in_hand_is_taken_once_forgotten_when_changed_and_bounded() -> None:
    in_hand, single_job_run = ClaimCache(), run_of_one_job(1)
    in_hand.keep([single_job_run])
    assert in_hand.take(key(single_job_run), DONE) == single_job_run
    assert in_hand.take(key(single_job_run), DONE) is None
    in_hand.keep([single_job_run])
    in_hand.forget([key(single_job_run)])
    assert in_hand.take(key(single_job_run), DONE) is None
    many = [
        SingleJobRun(single_job_run.run, replace(single_job_run.job, attempt=number), single_job_run.subject)
        for number in range(REMEMBERED + 1)
    ]
    in_hand.keep(many)
    assert in_hand.take(key(many[0]), DONE) is None
    assert all(in_hand.take(key(each), DONE) == each for each in many[1:])
