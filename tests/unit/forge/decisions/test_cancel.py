"""`/cancel` in a comment: the event of each forge's payload, and the published message."""

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from solstice_common.messages import JobCancelV1
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, jobs_route
from solstice_common.values.times import parse_timestamp
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import PlannedCancel, build_request
from solstice_forge.decisions.rules import BUILT, Rule, RuleEvent
from solstice_forge.decisions.ruling import ruling
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.events import Command, CommandKind, LackingField, lacks
from solstice_forge.relay.publication import publication
from tests.webhooks.deliveries import deliveries

COMMENTS = {
    "github": "github/comment-cancel",
    "forgejo": "forgejo/comment-ok-to-test",
    "gitea": "gitea/comment-retest",
    "gitlab": "gitlab/note-retest",
}
NOW = 1_790_000_000.0


def understood_comment(forge: str, words: str, **changes: Any) -> UnderstoodDelivery:
    """The forge's comment with these words."""
    one = deliveries()[COMMENTS[forge]]
    document = orjson.loads(one.body)
    if forge == "gitlab":
        document["object_attributes"] |= {"note": words, **changes}
    else:
        document["comment"] |= {"body": words, **changes}
    outcome = triage(one.source, one.headers, orjson.dumps(document), now=NOW, verify=False)
    assert isinstance(outcome, UnderstoodDelivery)
    return outcome


def command(forge: str, words: str, **changes: Any) -> Command:
    event = understood_comment(forge, words, **changes).event
    assert isinstance(event, Command)
    return event


@pytest.mark.parametrize("forge", COMMENTS)
def test_every_forge_s_comment_is_understood(forge: str) -> None:
    event = replace(command(forge, "Enough of it.\n/cancel"), by_author=False)
    assert event.word is CommandKind.CANCEL
    assert lacks(event) == (LackingField.PERMISSION,)


@pytest.mark.parametrize("forge", COMMENTS)
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("/cancel\n/retest", CommandKind.RETEST),
        ("/ok-to-test\n/cancel", CommandKind.OK_TO_TEST),
        ("/cancel please", CommandKind.CANCEL),
    ],
)
def test_of_several_words_the_one_that_builds_counts(forge: str, words: str, meant: CommandKind) -> None:
    assert command(forge, words).word is meant


def cancel_of(event: Command, source: WebhookSource, received_at: float = NOW) -> JobCancelV1:
    outcome = build_request(
        event, source=source, delivery_id="d-1", received_at=received_at, traceparent=None
    )
    assert isinstance(outcome, PlannedCancel)
    assert outcome.cancel.encode() == outcome.body
    return outcome.cancel


@pytest.mark.parametrize("forge", COMMENTS)
def test_it_becomes_a_cancel_for_the_change_request(forge: str) -> None:
    event, source = command(forge, "/cancel"), deliveries()[COMMENTS[forge]].source
    cancel = cancel_of(event, source)
    assert (cancel.source, cancel.repo_url) == (source.forge.SOURCE, event.repo_url)
    assert (cancel.change_number, cancel.sender) == (event.number, event.sender)
    again = build_request(event, source=source, delivery_id="d-2", received_at=NOW, traceparent=None)
    assert isinstance(again, PlannedCancel)
    assert again.key == cancel.idempotency_key
    assert again.id != cancel.cancel_id


@pytest.mark.parametrize(
    ("forge", "written"),
    [
        ("github", "2026-03-01T12:00:00Z"),
        ("gitea", "2026-03-01T13:00:00+01:00"),
        ("forgejo", "2026-03-01T12:00:00Z"),
        ("gitlab", "2026-03-01 12:00:00 UTC"),
    ],
)
def test_one_that_comes_late_is_of_when_it_was_written(forge: str, written: str) -> None:
    noon = parse_timestamp("2026-03-01T12:00:00Z").timestamp()
    event, source = command(forge, "/cancel", created_at=written), deliveries()[COMMENTS[forge]].source
    assert parse_timestamp(cancel_of(event, source, noon + 3600).submitted_at).timestamp() == noon
    assert parse_timestamp(cancel_of(event, source, noon + 2).submitted_at).timestamp() == noon + 2
    assert parse_timestamp(cancel_of(event, source, noon - 60).submitted_at).timestamp() == noon - 60


def test_rules_say_what_is_built_and_not_what_may_be_stopped() -> None:
    one = deliveries()[COMMENTS["github"]]
    rules = (Rule(name="pushes", events=frozenset({RuleEvent.PUSH})),)
    source = WebhookSource(name="x", forge=one.source.forge, secrets=("s",), rules=rules)
    assert ruling(command("github", "/cancel"), source, b"") is BUILT


def test_author_of_the_change_request_needs_no_lookup() -> None:
    one = deliveries()[COMMENTS["github"]]
    document = orjson.loads(one.body)
    document["issue"]["user"] = document["sender"]
    outcome = triage(one.source, one.headers, orjson.dumps(document), now=NOW, verify=False)
    assert isinstance(outcome, UnderstoodDelivery)
    assert isinstance(outcome.planned, PlannedCancel)
    stored = new_delivery(one.source, one.headers, outcome, NOW)
    assert (stored.reason, stored.request_id) == ("cancel", outcome.planned.cancel.cancel_id)
    assert stored.detail == f"earlier requests of #12 are cancelled by {document['sender']['login']}"


def test_it_is_published_by_its_own_route() -> None:
    one = deliveries()[COMMENTS["gitea"]]
    outcome = build_request(
        command("gitea", "/cancel"), source=one.source, delivery_id="d", received_at=NOW, traceparent=None
    )
    assert isinstance(outcome, PlannedCancel)
    message = publication(outcome.body, jobs_route(BrokerSettings()), attempt=1)
    assert (message.exchange, message.routing_key) == (CANCELS.exchange, CANCELS.routing_key)
    assert (message.type, message.correlation_id) == ("jobcancel.v1", outcome.cancel.cancel_id)
    assert message.headers["x-solstice-idempotency-key"] == outcome.cancel.idempotency_key
