"""A request as the message that the relay publishes."""

import pytest

from solstice_common.messages import JobRequestV1, Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import Route, split_jobs_route
from solstice_forge.relay.publication import publication

ROUTE = Route(exchange="jobs", queue="jobs.v1", routing_key="jobrequest.v1", dlx="dead", dlq="dead.v1")
SPLIT = split_jobs_route(BrokerSettings.model_construct())


def request(**more: object) -> JobRequestV1:
    return JobRequestV1.model_validate(
        {
            "schema_version": "jobrequest.v1",
            "request_id": "00000000-0000-4000-8000-000000000001",
            "source": "manual",
            "repo_url": "https://forge.example/a/b.git",
            "commit_sha": "a" * 40,
            "submitted_at": "2026-01-31T12:00:00Z",
            **more,
        }
    )


def test_message_carries_what_a_person_wants_to_see() -> None:
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    message = publication(body := request(idempotency_key="k", traceparent=trace).encode(), ROUTE, attempt=3)
    assert (message.exchange, message.routing_key, message.body) == ("jobs", "jobrequest.v1", body)
    assert (message.type, message.correlation_id) == ("jobrequest.v1", "00000000-0000-4000-8000-000000000001")
    assert message.headers == {
        "x-solstice-attempt": 3,
        "x-solstice-idempotency-key": "k",
        "traceparent": trace,
    }


def test_request_without_a_key_is_its_own_key() -> None:
    message = publication(request().encode(), ROUTE, attempt=1)
    assert message.headers["x-solstice-idempotency-key"] == "00000000-0000-4000-8000-000000000001"
    assert "traceparent" not in message.headers


def test_more_urgent_is_a_higher_priority() -> None:
    numbers = [
        publication(request(priority=priority).encode(), ROUTE, attempt=1).priority or 0
        for priority in ("low", "default", "high", "critical")
    ]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("unknown", ['"someday"', "7", '["low"]', '{"low":1}'])
def test_priority_of_a_newer_version_is_none_here_and_takes_the_route_of_v1(unknown: str) -> None:
    newer = request(priority="low").encode().replace(b'"low"', unknown.encode())
    for route in (ROUTE, SPLIT):
        message = publication(newer, route, attempt=1)
        assert (message.priority, message.routing_key) == (None, "jobrequest.v1")


def test_each_class_takes_its_own_route_where_it_has_one() -> None:
    keys = [
        publication(request(**named).encode(), SPLIT, attempt=1).routing_key
        for named in ({}, *({"priority": each.value} for each in Priority))
    ]
    assert keys == [
        "jobrequest.v1",
        "jobrequest.v1.critical",
        "jobrequest.v1.high",
        "jobrequest.v1",
        "jobrequest.v1.low",
    ]
    urgent = publication(request(priority="critical").encode(), SPLIT, attempt=1)
    assert (urgent.exchange, urgent.type) == ("solstice.jobs", "jobrequest.v1")
    assert publication(urgent.body, ROUTE, attempt=1).routing_key == "jobrequest.v1"
