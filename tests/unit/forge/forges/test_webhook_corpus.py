"""Recorded deliveries of real forges: decisions, fields and signatures."""

from collections.abc import Mapping
from typing import Any

import pytest

from solstice_common.messages import Source
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import PlannedRun
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.decisions.triage import Refused, triage
from solstice_forge.forges import bodies, standard_webhooks
from solstice_forge.forges.events import (
    ChangeRequest,
    Command,
    Dispatch,
    Event,
    Ignored,
    Push,
    Release,
    Rerun,
    lacks,
)
from solstice_forge.forges.protocol import Forged, Genuine
from tests.webhooks.corpus import CORPUS, NO_CORPUS, recorded, vectors

UNIMPLEMENTED_SCHEMES = frozenset({"hub-sha1"})
"""GitHub's older signature is not accepted at all: SHA-256 has been beside it since 2020."""

DECIDED = {"github-doc-upper": False}
"""Vectors that leave the answer to the receiver. Upper-case digits: no forge sends them, so they are refused."""


def variants() -> list[tuple[str, str]]:
    return [
        (name, variant)
        for name, one in recorded().items()
        for variant in ("headers", "headers_signed")
        if variant in one.meta
    ]


def understood(name: str, variant: str) -> UnderstoodDelivery:
    one = recorded()[name]
    outcome = triage(one.source, one.headers(variant), one.body, now=one.clock)
    assert isinstance(outcome, UnderstoodDelivery), outcome
    return outcome


if CORPUS is None:

    def test_recorded_deliveries_were_asked_for() -> None:
        pytest.skip(NO_CORPUS)


else:

    def test_the_whole_corpus_is_here() -> None:
        assert len(recorded()) == 90
        assert len(vectors()) == 60

    @pytest.mark.parametrize(("name", "variant"), variants())
    def test_verdict_and_fields_are_those_expected(name: str, variant: str) -> None:
        expected = recorded()[name].meta["expected"]
        outcome = understood(name, variant)
        if expected["should_trigger"] == "no":
            assert isinstance(outcome.event, Ignored)
            assert outcome.event.repo_full_name == expected["fields"]["repo_full_name"]
            return
        assert not isinstance(outcome.event, Ignored), outcome.event
        assert {need.value for need in lacks(outcome.event)} == set(expected["needs_lookup"])
        fields = fields_of(outcome.event)
        assert fields == {key: expected["fields"][key] for key in fields}

    @pytest.mark.parametrize(("name", "variant"), variants())
    def test_what_lacks_nothing_becomes_a_request_at_once(name: str, variant: str) -> None:
        expected = recorded()[name].meta["expected"]
        planned_run = understood(name, variant).planned
        if expected["should_trigger"] == "yes" and not expected["needs_lookup"]:
            assert isinstance(planned_run, PlannedRun)
            assert planned_run.request.commit_sha == expected["fields"]["commit_sha"]
            assert planned_run.request.delivery_id == recorded()[name].meta["delivery_id"]
            assert planned_run.request.trusted is (expected["fields"]["is_fork"] is False)
        else:
            assert planned_run is None

    @pytest.mark.parametrize(("name", "variant"), variants())
    def test_one_byte_tampered_is_refused(name: str, variant: str) -> None:
        one = recorded()[name]
        headers, body = one.headers(variant), bytearray(one.body)
        if "x-gitlab-token" in headers:
            # The token does not cover the body; this is why GitLab made signatures.
            headers["x-gitlab-token"] = headers["x-gitlab-token"][:-1] + "_"
        else:
            body[len(body) // 2] ^= 0x01
        outcome = triage(one.source, headers, bytes(body), now=one.clock)
        assert isinstance(outcome, Refused)
        assert (outcome.status, outcome.reason) == (401, "bad_signature")

    @pytest.mark.parametrize(("name", "variant"), variants())
    def test_without_our_secret_everything_is_refused(name: str, variant: str) -> None:
        one = recorded()[name]
        for secrets in ((), ("",), ("another secret",)):
            source = WebhookSource(name=one.source.name, forge=one.source.forge, secrets=secrets)
            outcome = triage(source, one.headers(variant), one.body, now=one.clock)
            assert isinstance(outcome, Refused)
            assert outcome.status == 401

    @pytest.mark.parametrize(
        "name", [v["id"] for v in vectors().values() if v["scheme"] not in UNIMPLEMENTED_SCHEMES]
    )
    def test_signature_vector(name: str) -> None:
        vector = vectors()[name]
        valid = DECIDED[name] if vector["valid"] is None else vector["valid"]
        assert isinstance(outcome_of(vector), Genuine if valid else Forged)

    @pytest.mark.parametrize(
        "name", [v["id"] for v in vectors().values() if v["scheme"] in UNIMPLEMENTED_SCHEMES]
    )
    def test_older_signature_proves_nothing(name: str) -> None:
        vector = vectors()[name]
        headers = {"content-type": bodies.JSON, "x-hub-signature": vector["signature"]}
        secrets = (vector["secret"],)
        assert isinstance(FORGES[Source.GITHUB].verify(headers, vector["body"].encode(), secrets, 0), Forged)


def fields_of(event: Event) -> dict[str, object]:
    """The event under the names of the corpus."""
    common = {
        name: getattr(event, name) for name in ("repo_full_name", "repo_url", "ref", "commit_sha", "sender")
    }
    match event:
        case Push():
            return {**common, **ref_fields(event.ref), "before_sha": event.before_sha}
        case ChangeRequest():
            of_change = (
                "action",
                "base_ref",
                "head_ref",
                "is_fork",
                "head_repo_full_name",
                "head_repo_url",
                "draft",
            )
            return {
                **common,
                "pr_number": event.number,
                **{name: getattr(event, name) for name in of_change},
            }
        case Rerun():
            return {**common, "branch": event.branch, "pr_number": event.number, "action": event.action}
        case Release():
            return {**common, **ref_fields(event.ref), "action": event.action}
        case Dispatch():
            path = {"workflow_path": event.workflow_path} if event.workflow_path else {}
            return {**common, **ref_fields(event.ref), "action": event.action, **path}
        case Command():
            of_command = ("action", "is_fork", "base_ref", "head_ref", "head_repo_url")
            return {
                **common,
                "pr_number": event.number,
                "comment": event.word,
                **{name: getattr(event, name) for name in of_command},
            }


def ref_fields(ref: str) -> dict[str, object]:
    kind, name = ("tag" if ref.startswith("refs/tags/") else "branch"), ref.split("/", 2)[-1]
    return {"ref_type": kind, "branch": None, "tag": None, kind: name}


def outcome_of(vector: Mapping[str, Any]) -> object:
    """The result of the forge that uses the vector's scheme."""
    secret = vector["secret"]
    secrets = tuple(secret) if isinstance(secret, list) else (secret,)
    body, signature = vector["body"].encode(), vector["signature"]
    headers = {name.lower(): value for name, value in (vector["headers"] or {}).items()}
    match vector["scheme"]:
        case "hub-sha256":
            origin, header, kind = Source.GITHUB, "x-hub-signature-256", bodies.JSON
        case "plain-hex-sha256":
            origin, header, kind = Source.FORGEJO, "x-forgejo-signature", bodies.JSON
        case "gitea-form":
            origin, header, kind = Source.GITEA, "x-gitea-signature", bodies.FORM
        case "gitlab-token":
            origin, header, kind = Source.GITLAB, "x-gitlab-token", bodies.JSON
        case "standard-webhooks":
            prefix = standard_webhooks.TOKEN_PREFIX
            secrets = tuple(prefix + one.removeprefix(prefix) for one in secrets)
            origin, header, kind = Source.GITLAB, standard_webhooks.SIGNATURE, bodies.JSON
        case unknown:
            raise AssertionError(f"a scheme nobody decided about: {unknown}")
    if signature is not None:
        headers[header] = signature
    now = float(headers.pop("x-test-clock", 1614265330))
    return FORGES[origin].verify({"content-type": kind, **headers}, body, secrets, now)
