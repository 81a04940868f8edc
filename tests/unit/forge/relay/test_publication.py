import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.topology import Route
from solstice_forge.relay.publication import publication

ROUTE = Route(exchange="jobs", queue="jobs.v1", routing_key="jobrequest.v1", dlx="dead", dlq="dead.v1")


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


@pytest.mark.parametrize("unknown", ["someday"])
def test_priority_of_a_newer_version_is_none_here(unknown: str) -> None:
    newer = request(priority="low").encode().replace(b'"low"', f'"{unknown}"'.encode())
    assert publication(newer, ROUTE, attempt=1).priority is None
