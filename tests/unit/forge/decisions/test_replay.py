"""A replay of a stored delivery is a separate run, by the current rules."""

from dataclasses import replace

import orjson
import pytest
from msgspec.structs import replace as changed

from solstice_common.messages import JobRequestV1, Source
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.replay import DeliveryNotReplayable, replay
from solstice_forge.decisions.rules import Rule
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import triage
from solstice_forge.decisions.verdict_words import SENTENCES
from solstice_forge.forges.events import IgnoreReason
from solstice_forge.forges.samples import push_body, sign
from solstice_forge.inbox.keep_results import new
from solstice_forge.inbox.log import DeliveryEntry, RecordedDelivery
from solstice_forge.inbox.protocol import Decision, NewDelivery
from tests.webhooks.deliveries import deliveries

SECRET = "maple-lantern-42"
NOW = 1_800_000_000.0
SOURCE = WebhookSource(name="harbour", forge=FORGES[Source.FORGEJO], secrets=(SECRET,))


def saved(message: str = "a change", source: WebhookSource = SOURCE) -> NewDelivery:
    """A push to main as the inbox keeps it."""
    body = push_body(
        Source.FORGEJO,
        repo_url="https://forge.example/tide-club/almanac.git",
        repo_full_name="tide-club/almanac",
        ref="refs/heads/main",
        sha="1" * 40,
    )
    pushed = {**orjson.loads(body), "head_commit": {"id": "1" * 40, "message": message}}
    body = orjson.dumps(pushed)
    headers = sign(Source.FORGEJO, SECRET, event="push", body=body, delivery_id="d-1", now=0)
    understood = triage(source, {name.lower(): value for name, value in headers.items()}, body, now=NOW - 60)
    assert isinstance(understood, UnderstoodDelivery), understood
    return new_delivery(source, {}, understood, NOW - 60)


def recorded(delivery: NewDelivery, row_id: int = 7) -> RecordedDelivery:
    answer = new(delivery)
    return RecordedDelivery(
        entry=DeliveryEntry(
            row_id=row_id,
            source_name=delivery.source_name,
            delivery_id=delivery.delivery_id,
            event_name=delivery.event_name,
            received_at=delivery.received_at,
            repo_full_name=delivery.repo_full_name,
            decision=answer.decision,
            reason=delivery.reason,
            detail=delivery.detail,
            request_ids=answer.request_ids,
            repeats=None,
            published=None,
            attempts=0,
            last_failure=None,
        ),
        headers=delivery.headers,
        body=delivery.body,
        request=delivery.request,
    )


def again(delivery: NewDelivery, source: WebhookSource = SOURCE) -> NewDelivery:
    replayed = replay(recorded(delivery), source, now=NOW, token="abc", person="mira")
    assert isinstance(replayed, NewDelivery), replayed
    return replayed


def test_replay_asks_for_the_same_commit_under_keys_of_its_own() -> None:
    first = saved()
    second = again(first)
    assert first.request is not None
    assert second.request is not None
    before, after = JobRequestV1.decode(first.request), JobRequestV1.decode(second.request)
    same = ("commit_sha", "ref", "repo_url", "event", "trusted", "source_name")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.request_id != before.request_id
    assert after.idempotency_key == after.delivery_id == second.content_key == "replay:7:abc"
    assert second.request_id == after.request_id
    assert (second.source_name, second.event_name) == (first.source_name, "push")
    assert (second.reason, second.detail) == ("replay", "replay of delivery 7, asked for by mira")
    assert after.submitted_at == "2027-01-15T08:00:00.000Z"


def test_replay_goes_by_the_rules_of_now() -> None:
    elsewhere = replace(SOURCE, rules=(Rule(name="elsewhere", repositories=("other/*",)),))
    ruled_out = saved(source=elsewhere)
    assert (ruled_out.reason, ruled_out.request) == (IgnoreReason.NO_RULE, None)
    assert again(ruled_out).request is not None
    refused = again(saved(), elsewhere)
    assert (refused.reason, refused.request, refused.content_key) == (IgnoreReason.NO_RULE, None, None)
    assert refused.detail == (
        "replay of delivery 7, asked for by mira; no rule is for a push in tide-club/almanac"
    )


def test_replay_is_asked_for_now_however_old_its_event_is() -> None:
    late = deliveries()["github/push-branch"]
    document = orjson.loads(late.body)
    document["repository"]["pushed_at"] = int(NOW - 86_400)
    understood = triage(late.source, late.headers, orjson.dumps(document), now=NOW, verify=False)
    assert isinstance(understood, UnderstoodDelivery), understood
    first = new_delivery(late.source, {}, understood, NOW)
    second = again(first, late.source)
    assert first.request is not None
    assert second.request is not None
    assert JobRequestV1.decode(first.request).submitted_at == "2027-01-14T08:00:00.000Z"
    assert JobRequestV1.decode(second.request).submitted_at == "2027-01-15T08:00:00.000Z"


def test_replay_of_a_cancel_says_what_it_cancels_and_is_one_of_its_own() -> None:
    comment = deliveries()["github/comment-cancel"]
    understood = triage(comment.source, comment.headers, comment.body, now=NOW, verify=False)
    assert isinstance(understood, UnderstoodDelivery), understood
    first = new_delivery(comment.source, {}, understood, NOW)
    second = again(first, comment.source)
    assert second.reason == "cancel"
    assert second.detail == f"replay of delivery 7, asked for by mira; {first.detail}"
    assert second.content_key == "replay:7:abc"


def test_replay_of_a_form_says_that_its_body_is_json() -> None:
    """The inbox holds the decoded text, and the sender's header would have it decoded again."""
    whole = recorded(saved())
    form = changed(whole, headers={"content-type": "application/x-www-form-urlencoded"})
    replayed = replay(form, SOURCE, now=NOW, token="abc", person="mira")
    assert isinstance(replayed, NewDelivery)
    assert replayed.headers["content-type"] == "application/json"


def test_replay_builds_also_what_asked_to_be_skipped() -> None:
    skipped = saved(message="words only [skip ci]")
    assert skipped.reason == IgnoreReason.SKIP_CI
    assert again(skipped).request is not None


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        pytest.param({"body": b""}, "solstice rerun", id="body-gone"),
        pytest.param({"body": b"{"}, "cannot be read", id="body-broken"),
        pytest.param({"body": b"", "decision": Decision.IGNORED}, "requested nothing", id="ignored"),
        pytest.param({"decision": Decision.DUPLICATE, "repeats": 3}, "that it repeats, 3", id="copy"),
    ],
)
def test_what_cannot_be_replayed_says_why(change: dict[str, object], reported: str) -> None:
    whole = recorded(saved())
    entry = changed(whole.entry, **{name: value for name, value in change.items() if name != "body"})
    outcome = replay(
        changed(whole, entry=entry, body=change.get("body", whole.body)),
        SOURCE,
        now=NOW,
        token="abc",
        person="mira",
    )
    assert isinstance(outcome, DeliveryNotReplayable)
    assert reported in outcome.detail


def test_every_reason_to_ignore_has_its_sentence() -> None:
    assert set(IgnoreReason) <= set(SENTENCES)
