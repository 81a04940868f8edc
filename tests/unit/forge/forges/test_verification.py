"""Verification of senders, beyond the recorded deliveries."""

import base64

import pytest

from solstice_common.messages import Source
from solstice_forge.decisions.sources import FORGES
from solstice_forge.forges import gitlab, standard_webhooks
from solstice_forge.forges.protocol import Forged, Genuine, Unsupported
from solstice_forge.forges.samples import sign
from solstice_forge.forges.signatures import hex_digest

BODY = b'{"zen": "\xe2\x99\xa5"}'
NOW = 1_790_000_000.0
TOKEN = "whsec_" + base64.b64encode(b"a key of some length").decode()
SIGNED_WITH_HMAC = [Source.GITHUB, Source.GITEA, Source.FORGEJO]
HEADER = {
    Source.GITHUB: "x-hub-signature-256",
    Source.GITEA: "x-gitea-signature",
    Source.FORGEJO: "x-forgejo-signature",
}
EVENT = {Source.GITLAB: "Push Hook"}


def signed(origin: Source, key: str = "old", body: bytes = BODY, now: float = NOW) -> dict[str, str]:
    event = EVENT.get(origin, "push")
    return sign(origin, key, event=event, body=body, delivery_id="d-1", now=now)


@pytest.mark.parametrize("origin", FORGES)
def test_any_live_secret_is_accepted(origin: Source) -> None:
    verify = FORGES[origin].verify
    assert verify(signed(origin), BODY, ("new", "old"), NOW) == Genuine(payload=BODY)
    assert isinstance(verify(signed(origin), BODY, ("new", "newer"), NOW), Forged)


@pytest.mark.parametrize("origin", FORGES)
def test_secret_need_not_be_ascii(origin: Source) -> None:
    as_servers_hand_it_over = {
        name: value.encode().decode("latin-1") for name, value in signed(origin, "schlüssel").items()
    }
    assert isinstance(FORGES[origin].verify(as_servers_hand_it_over, BODY, ("schlüssel",), NOW), Genuine)


@pytest.mark.parametrize("origin", FORGES)
@pytest.mark.parametrize("secrets", [(), ("",), ("", "")], ids=["none", "empty", "two-empty"])
def test_no_secret_of_ours_refuses_everything(origin: Source, secrets: tuple[str, ...]) -> None:
    headers = signed(origin, "")
    assert isinstance(FORGES[origin].verify(headers, BODY, secrets, NOW), Forged)


@pytest.mark.parametrize("origin", SIGNED_WITH_HMAC)
@pytest.mark.parametrize(
    "value",
    ["", "sha256=", "é" * 64, "sha256=é", "\x00", hex_digest("old", BODY)[:63], "A" * 64],
    ids=["empty", "prefix-only", "not-ascii", "prefix-not-ascii", "nul", "short", "wrong"],
)
def test_odd_signature_is_forged(origin: Source, value: str) -> None:
    headers = {**signed(origin), HEADER[origin]: value}
    assert isinstance(FORGES[origin].verify(headers, BODY, ("old",), NOW), Forged)


@pytest.mark.parametrize("origin", SIGNED_WITH_HMAC)
def test_upper_case_digits_are_forged(origin: Source) -> None:
    headers = signed(origin)
    prefix = "sha256=" if origin is Source.GITHUB else ""
    headers[HEADER[origin]] = prefix + hex_digest("old", BODY).upper()
    assert isinstance(FORGES[origin].verify(headers, BODY, ("old",), NOW), Forged)


@pytest.mark.parametrize("origin", FORGES)
def test_missing_signature_is_forged_and_says_what_to_set(origin: Source) -> None:
    headers = {"content-type": "application/json"}
    outcome = FORGES[origin].verify(headers, BODY, ("old",), NOW)
    assert isinstance(outcome, Forged)
    assert "webhook settings" in outcome.detail


@pytest.mark.parametrize("origin", FORGES)
def test_refusal_never_contains_the_right_value(origin: Source) -> None:
    headers = signed(origin, "wrong")
    outcome = FORGES[origin].verify(headers, BODY, ("old",), NOW)
    assert isinstance(outcome, Forged)
    assert hex_digest("old", BODY) not in outcome.detail
    assert "old" not in outcome.detail


@pytest.mark.parametrize("origin", FORGES)
@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "multipart/form-data; boundary=x", "application/jsonp"]
)
def test_unknown_content_type_is_unsupported(origin: Source, kind: str | None) -> None:
    headers = signed(origin)
    del headers["content-type"]
    if kind is not None:
        headers["content-type"] = kind
    assert isinstance(FORGES[origin].verify(headers, BODY, ("old",), NOW), Unsupported)


@pytest.mark.parametrize("origin", FORGES)
def test_content_type_may_have_parameters_and_capitals(origin: Source) -> None:
    headers = {**signed(origin), "content-type": "Application/JSON; charset=utf-8"}
    assert isinstance(FORGES[origin].verify(headers, BODY, ("old",), NOW), Genuine)


def test_gitlab_sends_no_forms() -> None:
    headers = {**signed(Source.GITLAB), "content-type": "application/x-www-form-urlencoded"}
    outcome = gitlab.verify(headers, BODY, ("old",), NOW)
    assert isinstance(outcome, Unsupported)
    assert "is application/x-www-form-urlencoded: set it to application/json in" in outcome.detail


@pytest.mark.parametrize("origin", SIGNED_WITH_HMAC)
@pytest.mark.parametrize(
    ("kind", "reported"),
    [({}, "missing"), ({"content-type": "text/plain"}, "text/plain")],
    ids=["none", "text"],
)
def test_wrong_content_type_is_named_beside_those_to_set(
    origin: Source, kind: dict[str, str], reported: str
) -> None:
    headers = {name: value for name, value in signed(origin).items() if name != "content-type"} | kind
    outcome = FORGES[origin].verify(headers, BODY, ("old",), NOW)
    assert isinstance(outcome, Unsupported)
    expected = "application/json or application/x-www-form-urlencoded"
    assert f"is {reported}: set it to {expected} in" in outcome.detail


def test_form_of_github_is_signed_over_the_form_and_of_gitea_over_the_json() -> None:
    form = b"a=1&payload=%7B%22x%22%3A+%22%2B%22%7D"
    json_text = b'{"x": "+"}'
    kind = {"content-type": "application/x-www-form-urlencoded"}
    github = {**signed(Source.GITHUB, body=form), **kind}
    gitea = {**signed(Source.GITEA, body=json_text), **kind}
    assert FORGES[Source.GITHUB].verify(github, form, ("old",), NOW) == Genuine(payload=json_text)
    assert FORGES[Source.GITEA].verify(gitea, form, ("old",), NOW) == Genuine(payload=json_text)
    assert isinstance(FORGES[Source.GITEA].verify({**github, **kind}, form, ("old",), NOW), Forged)


@pytest.mark.parametrize("seconds", [-301, 301])
def test_gitlab_signature_outside_the_window_is_forged(seconds: int) -> None:
    headers = signed(Source.GITLAB, TOKEN)
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN,), NOW + seconds), Forged)


@pytest.mark.parametrize("seconds", [-300, 0, 300])
def test_gitlab_signature_inside_the_window_is_genuine(seconds: int) -> None:
    headers = signed(Source.GITLAB, TOKEN)
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN,), NOW + seconds), Genuine)


@pytest.mark.parametrize(
    "timestamp", ["", "hello", " 1790000000", "1_790_000_000", "+1790000000", "٣", "9" * 400]
)
def test_gitlab_timestamp_must_be_plain_digits(timestamp: str) -> None:
    headers = signed(Source.GITLAB, TOKEN)
    headers["webhook-timestamp"] = timestamp
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN,), NOW), Forged)


@pytest.mark.parametrize("missing", [standard_webhooks.ID, standard_webhooks.TIMESTAMP])
@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "absent"])
def test_gitlab_signature_without_what_it_covers_is_forged_and_names_that(
    missing: str, is_empty: bool
) -> None:
    headers = signed(Source.GITLAB, TOKEN)
    headers |= {missing: ""}
    if not is_empty:
        del headers[missing]
    outcome = gitlab.verify(headers, BODY, (TOKEN,), NOW)
    assert isinstance(outcome, Forged)
    assert "webhook-id and webhook-timestamp are needed" in outcome.detail


def test_wrong_gitlab_signature_is_not_made_good_by_the_right_token() -> None:
    headers = {**signed(Source.GITLAB, TOKEN), "x-gitlab-token": "old"}
    headers["webhook-signature"] = "v1," + base64.b64encode(b"x" * 32).decode()
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN, "old"), NOW), Forged)
    headers["webhook-signature"] = ""
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN, "old"), NOW), Forged)


def test_gitlab_signature_without_a_signing_token_of_ours_is_forged() -> None:
    headers = {**signed(Source.GITLAB, TOKEN), "x-gitlab-token": "old"}
    assert isinstance(gitlab.verify(headers, BODY, ("old",), NOW), Forged)


def test_gitlab_signing_token_is_no_secret_token() -> None:
    headers = {**signed(Source.GITLAB, "old"), "x-gitlab-token": TOKEN}
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN,), NOW), Forged)


def test_gitlab_may_send_several_signatures() -> None:
    headers = signed(Source.GITLAB, TOKEN)
    right = headers["webhook-signature"]
    headers["webhook-signature"] = f"v1a,zzz v1,AAAA {right}"
    assert isinstance(gitlab.verify(headers, BODY, (TOKEN,), NOW), Genuine)


def test_signed_id_is_the_delivery_id() -> None:
    """Otherwise an attacker could repeat a signed delivery under a new id."""
    headers = {**signed(Source.GITLAB, TOKEN), "idempotency-key": "another"}
    assert gitlab.delivery_id(headers) == "d-1"
    del headers["webhook-signature"]
    assert gitlab.delivery_id(headers) == "another"
    del headers["idempotency-key"]
    assert gitlab.delivery_id({**headers, "x-gitlab-event-uuid": "older"}) == "older"
    assert gitlab.delivery_id(headers) is None


@pytest.mark.parametrize("token", ["", "whsec_", "whsec_%%%", "whsec_YWJj%ZGVm", "whsec_é"])
def test_what_is_no_signing_token_has_no_key(token: str) -> None:
    assert standard_webhooks.key_of(token) == b""
