import json

from solstice_forge.decisions.stored_delivery import new_delivery, without_secret
from solstice_forge.decisions.triage import UnderstoodDelivery, triage
from tests.webhooks.deliveries import deliveries


def test_nothing_secret_is_stored() -> None:
    for one in deliveries().values():
        understood = triage(one.source, one.headers, one.body, now=one.now)
        assert isinstance(understood, UnderstoodDelivery)
        headers = {**one.headers, "authorization": "Bearer x", "cookie": "a=b", "x-my-api-key": "k"}
        stored = new_delivery(one.source, headers, understood, one.now)
        text = json.dumps(stored.headers) + stored.body.decode()
        assert one.secret not in text
        for name in stored.headers:
            assert not any(word in name for word in ("signature", "token", "authorization", "cookie", "key-"))
        assert "authorization" not in stored.headers
        assert "x-my-api-key" not in stored.headers


def test_what_tells_deliveries_apart_is_stored() -> None:
    one = deliveries()["gitlab/push-branch-signed"]
    understood = triage(one.source, one.headers, one.body, now=one.now)
    assert isinstance(understood, UnderstoodDelivery)
    stored = new_delivery(one.source, one.headers, understood, one.now)
    assert set(stored.headers) == {
        "content-type",
        "user-agent",
        "idempotency-key",
        "webhook-id",
        "webhook-timestamp",
        "x-gitlab-event",
        "x-gitlab-event-uuid",
        "x-gitlab-instance",
        "x-gitlab-webhook-uuid",
    }
    assert stored.body == one.body


def test_secret_in_a_body_is_redacted_and_nothing_else() -> None:
    body = rb'{"secret": "a \" b", "message": "\"secret\": \"kept\"", "n": {"secret":"x"}}'
    assert json.loads(without_secret(body)) == {
        "secret": "redacted",
        "message": '"secret": "kept"',
        "n": {"secret": "redacted"},
    }


def test_ignored_delivery_asks_for_nothing() -> None:
    one = deliveries()["github/ping"]
    understood = triage(one.source, one.headers, one.body, now=one.now)
    assert isinstance(understood, UnderstoodDelivery)
    stored = new_delivery(one.source, one.headers, understood, one.now)
    assert (stored.reason, stored.request, stored.request_id, stored.content_key) == (
        "ping",
        None,
        None,
        None,
    )
