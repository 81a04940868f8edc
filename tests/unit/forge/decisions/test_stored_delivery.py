"""A stored delivery has its headers and body, and no secret."""

import json

from msgspec.structs import replace

from solstice_common.messages import derive_request_id
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import content_key
from solstice_forge.decisions.stored_delivery import new_delivery, without_secret
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.events import Ignored, decode_lacking
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


def test_headers_that_identify_a_delivery_are_stored() -> None:
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
    assert stored.repo_full_name == understood.event.repo_full_name


def test_secret_in_a_body_is_redacted_and_nothing_else() -> None:
    body = rb'{"secret": "a \" b", "message": "\"secret\": \"kept\"", "n": {"secret":"x"}}'
    assert json.loads(without_secret(body)) == {
        "secret": "redacted",
        "message": '"secret": "kept"',
        "n": {"secret": "redacted"},
    }


def test_only_gitea_ever_put_its_secret_into_a_body() -> None:
    for name, whole_body in (("gitea/push-branch", False), ("forgejo/push-branch", True)):
        one = deliveries()[name]
        understood = triage(one.source, one.headers, one.body, now=one.now)
        assert isinstance(understood, UnderstoodDelivery)
        understood = replace(understood, payload=b'{"secret": "of a file"}')
        assert (
            new_delivery(one.source, one.headers, understood, one.now).body == understood.payload
        ) is whole_body


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
    assert stored.body == b""


def test_what_lacks_something_is_stored_whole_until_the_forge_is_asked() -> None:
    one = deliveries()["gitea/comment-retest"]
    understood = triage(one.source, one.headers, one.body, now=one.now)
    assert isinstance(understood, UnderstoodDelivery)
    stored = new_delivery(one.source, one.headers, understood, one.now)
    assert (stored.source_name, stored.delivery_id, stored.event_name, stored.repo_full_name) == (
        "gitea",
        one.headers["x-gitea-delivery"],
        "issue_comment",
        understood.event.repo_full_name,
    )
    assert (stored.received_at, stored.reason, stored.body) == (one.now, "comment", one.body)
    assert (stored.request, stored.detail) == (None, "")
    assert stored.request_id == derive_request_id("gitea", one.headers["x-gitea-delivery"])
    assert not isinstance(understood.event, Ignored)
    assert stored.content_key == content_key(understood.event, one.source, one.headers["x-gitea-delivery"])
    assert stored.lookup is not None
    assert decode_lacking(stored.lookup) == understood.event
