import pytest

from solstice_forge.decisions.plan import RunWanted
from solstice_forge.decisions.triage import Refused, UnderstoodDelivery, triage
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


def test_signature_is_checked_before_anything_else_is_looked_at() -> None:
    refused = outcome(x_github_delivery=None, x_github_event=None, x_hub_signature_256="sha256=00")
    assert isinstance(refused, Refused)
    assert refused.status == 401


def test_trace_of_the_sender_is_carried_on() -> None:
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    understood = outcome(traceparent=trace)
    assert isinstance(understood, UnderstoodDelivery)
    assert isinstance(understood.wanted, RunWanted)
    assert understood.wanted.request.traceparent == trace


def test_trace_that_is_none_is_left_out() -> None:
    understood = outcome(traceparent="00-zz")
    assert isinstance(understood, UnderstoodDelivery)
    assert isinstance(understood.wanted, RunWanted)
    assert understood.wanted.request.traceparent is None


def test_recorded_delivery_can_be_read_without_its_secret() -> None:
    form = deliveries()["github/push-form"]
    understood = triage(
        form.source, {**form.headers, "x-hub-signature-256": ""}, form.body, now=0, verify=False
    )
    assert isinstance(understood, UnderstoodDelivery)
    assert isinstance(understood.wanted, RunWanted)


@pytest.mark.parametrize("delivery_id", ["replay:1:x", "reconcile:push:0", "schedule:x"])
def test_a_delivery_cannot_have_an_id_of_our_own(delivery_id: str) -> None:
    refused = outcome(x_github_delivery=delivery_id)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (400, "malformed")
