"""Deliveries are refused by their headers and signatures, with a reason."""

from dataclasses import replace

import pytest

from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import PlannedRun
from solstice_forge.decisions.sources import SourceApp
from solstice_forge.decisions.triage import Refused, proof_lacking, triage
from tests.webhooks.deliveries import deliveries

PUSH = deliveries()["github/push-branch"]


def outcome(**changed: str | None) -> UnderstoodDelivery | Refused:
    headers = dict(PUSH.headers)
    for name, value in changed.items():
        key = name.replace("_", "-")
        if value is None:
            del headers[key]
        else:
            headers[key] = value
    return triage(PUSH.source, headers, PUSH.body, now=PUSH.now)


@pytest.mark.parametrize("header", ["x_github_delivery", "x_github_event"])
@pytest.mark.parametrize(
    "value", [None, "", " ", "a\x00b", "é", "x" * 256], ids=["none", "empty", "blank", "nul", "latin", "long"]
)
def test_header_that_is_missing_or_unusable_is_400(header: str, value: str | None) -> None:
    refused = outcome(**{header: value})
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (400, "missing_header")


@pytest.mark.parametrize("header", ["x_github_delivery", "x_github_event"])
def test_header_of_255_characters_is_taken(header: str) -> None:
    assert isinstance(outcome(**{header: "x" * 255}), UnderstoodDelivery)


def test_forged_delivery_is_401_and_its_reason_names_the_signature() -> None:
    refused = outcome(x_hub_signature_256="sha256=" + "0" * 64)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (401, "bad_signature")
    assert "x-hub-signature-256" in refused.detail.lower()


def test_delivery_without_a_signature_is_refused_before_its_body_is_read() -> None:
    headers = {name: value for name, value in PUSH.headers.items() if name != "x-hub-signature-256"}
    refused = proof_lacking(PUSH.source, headers)
    assert refused is not None
    assert (refused.status, refused.reason) == (401, "bad_signature")
    assert proof_lacking(PUSH.source, PUSH.headers) is None


def test_body_of_an_unknown_kind_is_415() -> None:
    refused = outcome(content_type="text/plain")
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (415, "unsupported_content_type")


APP = SourceApp(id=1, private_key="-")


@pytest.mark.parametrize(
    ("url", "token", "app", "needs_lookup"),
    [
        (None, None, None, False),
        (None, "t", None, False),
        ("https://api.github.com", None, None, False),
        ("https://api.github.com", "t", None, True),
        ("https://api.github.com", None, APP, True),
    ],
    ids=["nothing", "token without a URL", "URL alone", "URL and token", "URL and app"],
)
def test_rerun_waits_for_the_forges_word_where_the_forge_can_be_asked(
    url: str | None, token: str | None, app: SourceApp | None, needs_lookup: bool
) -> None:
    rerun = deliveries()["github/check-run-rerequested"]
    source = replace(rerun.source, url=url, token=token, app=app)
    understood = triage(source, rerun.headers, rerun.body, now=rerun.now)
    assert isinstance(understood, UnderstoodDelivery)
    assert (understood.planned is None) is needs_lookup


def test_signature_is_checked_before_anything_else_is_looked_at() -> None:
    refused = outcome(x_github_delivery=None, x_github_event=None, x_hub_signature_256="sha256=00")
    assert isinstance(refused, Refused)
    assert refused.status == 401


def test_trace_of_the_sender_is_carried_on() -> None:
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    understood = outcome(traceparent=trace)
    assert isinstance(understood, UnderstoodDelivery)
    assert isinstance(understood.planned, PlannedRun)
    assert understood.planned.request.traceparent == trace


def test_trace_that_is_none_is_left_out() -> None:
    understood = outcome(traceparent="00-zz")
    assert isinstance(understood, UnderstoodDelivery)
    assert isinstance(understood.planned, PlannedRun)
    assert understood.planned.request.traceparent is None


def test_recorded_delivery_can_be_read_without_its_secret() -> None:
    form = deliveries()["github/push-form"]
    understood = triage(
        form.source, {**form.headers, "x-hub-signature-256": ""}, form.body, now=0, verify=False
    )
    assert isinstance(understood, UnderstoodDelivery)
    assert isinstance(understood.planned, PlannedRun)


@pytest.mark.parametrize("delivery_id", ["replay:1:x", "reconcile:push:0", "schedule:x"])
def test_a_delivery_cannot_have_an_id_of_our_own(delivery_id: str) -> None:
    refused = outcome(x_github_delivery=delivery_id)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (400, "malformed")
