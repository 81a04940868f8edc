"""The project's own deliveries, as they are and mangled."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solstice_common.messages import JobCancelV1, JobRequestV1, Source
from solstice_forge.decisions.dry_run import check
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import PlannedRun
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.decisions.triage import Refused, triage
from solstice_forge.forges.events import Ignored, Malformed, lacks
from solstice_forge.forges.samples import sign
from tests.webhooks.deliveries import Delivery, deliveries

NAMES = sorted(deliveries())
DOCUMENTS: dict[str, Any] = {
    name: json.loads(one.body) for name, one in deliveries().items() if not one.is_form
}


@pytest.mark.parametrize("name", NAMES)
def test_delivery_means_what_its_sidecar_says(name: str) -> None:
    one = deliveries()[name]
    result = check(one.source, one.headers, one.body, now=one.now, verify=True)
    assert result["genuine"] is True
    assert result["status"] == (200 if one.expected["decision"] == "ignored" else 202)
    assert (result["decision"], result["reason"]) == (one.expected["decision"], one.expected["reason"])
    expected = one.expected["request"]
    if expected is None:
        assert result["request"] is None
    else:
        assert {key: result["request"][key] for key in expected} == expected
        JobRequestV1.decode(json.dumps(result["request"]).encode())


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "x-gitlab-token" not in deliveries()[name].headers]
)
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_one_byte_tampered_is_refused(name: str, where: float) -> None:
    one = deliveries()[name]
    body = bytearray(one.body)
    body[int(where * len(body))] ^= 0x02
    outcome = triage(one.source, one.headers, bytes(body), now=one.now)
    assert isinstance(outcome, Refused)
    assert outcome.status == 401


@pytest.mark.parametrize("name", NAMES)
def test_headers_never_choose_the_forge(name: str) -> None:
    """Sent to another forge's address, and with that forge's own secret unknown, nothing passes."""
    one = deliveries()[name]
    for origin, forge in FORGES.items():
        if origin is not one.origin:
            other = WebhookSource(name=origin.value, forge=forge, secrets=("another secret",))
            assert isinstance(triage(other, one.headers, one.body, now=one.now), Refused)


def test_every_forge_is_here_with_accepted_and_ignored() -> None:
    seen = {(one.origin, one.expected["decision"]) for one in deliveries().values()}
    assert seen == {(origin, decision) for origin in FORGES for decision in ("accepted", "ignored")}


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from(
        ["-", "ext::sh -c x", "https://u:p@h/r.git", "refs/heads/-x", "\x00", "0" * 40, "a" * 5000]
    ),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@st.composite
def mangled(draw: st.DrawFn) -> tuple[Delivery, bytes]:
    """A delivery with one value, anywhere in it, replaced or removed."""
    name = draw(st.sampled_from(sorted(DOCUMENTS)))
    document = json.loads(deliveries()[name].body)
    place, key = document, draw(st.sampled_from(sorted(document)))
    while isinstance(place[key], dict) and place[key] and draw(st.booleans()):
        place = place[key]
        key = draw(st.sampled_from(sorted(place)))
    if draw(st.booleans()):
        place[key] = draw(HOSTILE)
    else:
        del place[key]
    return deliveries()[name], json.dumps(document).encode()


def signed_again(one: Delivery, body: bytes) -> UnderstoodDelivery | Refused:
    event = one.source.forge.event_name(one.headers)
    assert event is not None
    headers = sign(one.origin, one.secret, event=event, body=body, delivery_id="d-1", now=one.now)
    return triage(one.source, headers, body, now=one.now)


def assert_no_surprise(outcome: UnderstoodDelivery | Refused) -> None:
    if isinstance(outcome, Refused):
        assert (outcome.status, outcome.reason) == (400, "malformed")
        assert outcome.detail
    elif isinstance(outcome.planned, PlannedRun):
        assert JobRequestV1.decode(outcome.planned.body) == outcome.planned.request
    elif outcome.planned is not None:
        assert JobCancelV1.decode(outcome.planned.body) == outcome.planned.cancel
    else:
        assert isinstance(outcome.event, Ignored) or lacks(outcome.event)


@given(mangled())
def test_mangled_payload_is_understood_or_malformed(case: tuple[Delivery, bytes]) -> None:
    assert_no_surprise(signed_again(*case))


@given(st.sampled_from(NAMES), st.binary(max_size=200))
@example("github/push-branch", b"")
@example("gitlab/push-branch", b"[" * 200_000)
@example("gitea/push-branch", b'{"ref":' * 50_000)
@example("github/ping", b'{"action": "\\ud800"}')
@example("forgejo/push-branch", b"\xff\xfe{}")
@example("github/push-branch", b'{"ref": 1' + b"0" * 5000 + b"}")
def test_any_bytes_are_understood_or_malformed(name: str, body: bytes) -> None:
    assert_no_surprise(signed_again(deliveries()[name], body))


@given(
    st.sampled_from(sorted(FORGES)),
    st.sampled_from(
        [
            "push",
            "pull_request",
            "issue_comment",
            "release",
            "check_run",
            "check_suite",
            "workflow_dispatch",
            "repository_dispatch",
            "merge_group",
            "Push Hook",
            "Merge Request Hook",
            "System Hook",
            "Note Hook",
            "Release Hook",
            "x",
        ]
    ),
    st.recursive(
        HOSTILE, lambda inner: st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8
    ),
)
def test_any_document_is_an_event_ignored_or_malformed(origin: Source, event: str, document: object) -> None:
    outcome = FORGES[origin].parse(event, json.dumps(document).encode())
    assert isinstance(outcome, Ignored | Malformed)


@given(
    st.sampled_from(NAMES),
    st.dictionaries(
        st.sampled_from(sorted({header for one in deliveries().values() for header in one.headers})),
        st.text(alphabet=st.characters(max_codepoint=255), max_size=80),
        max_size=4,
    ),
)
def test_any_headers_are_understood_or_refused(name: str, changed: dict[str, str]) -> None:
    one = deliveries()[name]
    outcome = triage(one.source, {**one.headers, **changed}, one.body, now=one.now)
    assert isinstance(outcome, UnderstoodDelivery) or outcome.status in {400, 401, 415}
