"""The rows that a request becomes in the store."""

import pytest

from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.statuses import RUN_CONTEXT
from solstice_orchestrator.store.decisions.admit import first_statuses, new_runs
from solstice_orchestrator.store.records.rows import key
from tests.builders import job_request, moment

NOW = 1_800_000_000.0
"""2027-01-15, eight o'clock in UTC."""


def test_requests_become_runs_in_their_order_with_their_keys() -> None:
    one = job_request(idempotency_key="once", change_number=7)
    other = job_request(repo_full_name=None, ref=None)
    first, second = new_runs(moment(NOW), [one, other], [one.encode(), other.encode()])
    assert first.run_id < second.run_id
    assert (first.request, first.body) == (one, one.encode())
    assert (first.request_key, second.request_key) == (key(one.request_id), key(other.request_id))
    assert (first.idempotency_key, second.idempotency_key) == (key("once"), None)
    assert (first.repository, second.repository) == ("lantern/harbour", other.repo_url)
    assert (first.ref, second.ref) == ("refs/heads/main", None)
    assert first.change_key is not None
    assert second.change_key is None


def test_a_request_is_stored_as_it_came_unless_it_names_its_repository_in_another_way() -> None:
    request = job_request()
    spaced = request.encode().replace(b'",', b'", ')
    elsewhere = request.encode().replace(
        request.repo_url.encode(), b"https://FORGE.example/lantern/harbour.git"
    )
    admitted_runs, made = new_runs(moment(NOW), [request] * 2, [spaced, elsewhere])
    assert (admitted_runs.body, made.body) == (spaced, request.encode())


@pytest.mark.parametrize(
    ("not_before", "state", "plan_at"),
    [
        (None, RunState.PLANNING, 0.0),
        ("2027-01-15T08:00:01Z", RunState.DELAYED, NOW + 1),
        ("2027-01-15T08:00:00Z", RunState.PLANNING, 0.0),
    ],
    ids=["at once", "later", "just now"],
)
def test_a_run_waits_for_the_start_that_its_request_names(
    not_before: str | None, state: RunState, plan_at: float
) -> None:
    request = job_request(not_before=not_before)
    (run,) = new_runs(moment(NOW), [request], [request.encode()])
    assert (run.state, run.plan_at) == (state, plan_at)


def test_a_new_run_has_one_status_that_says_what_comes_next() -> None:
    requests = [job_request(), job_request(not_before="2027-01-15T08:00:01Z")]
    now = moment(NOW, public_url="https://ci.example")
    runs = new_runs(now, requests, [each.encode() for each in requests])
    planning, delayed = first_statuses(now, runs)
    assert (planning.run_id, planning.sequence, planning.context) == (runs[0].run_id, 1, RUN_CONTEXT)
    assert (planning.state, delayed.state) == (RunState.PLANNING, RunState.DELAYED)
    assert planning.description == "Accepted; its workflow will be read next"
    assert delayed.description == "Accepted; it starts at 2027-01-15T08:00:01.000Z"
    assert planning.occurred_at == "2027-01-15T08:00:00.000Z"
    assert delayed.target_url == f"https://ci.example/runs/{runs[1].run_id}"
    assert planning.request_id == requests[0].request_id
    assert planning.status_id != delayed.status_id


def test_without_a_public_url_a_status_names_no_page() -> None:
    request = job_request()
    (status,) = first_statuses(moment(NOW), new_runs(moment(NOW), [request], [request.encode()]))
    assert status.target_url is None
