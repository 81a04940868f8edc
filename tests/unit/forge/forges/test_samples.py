"""Sample webhooks of each forge are genuine when we sign them."""

import json

import pytest

from solstice_common.messages import Source
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.events import Push
from solstice_forge.forges.samples import push_body, push_event_name, sign

TOKEN = "whsec_c29tZSBzaWduaW5nIGtleQ=="


@pytest.mark.parametrize("secret", ["plain", TOKEN], ids=["secret", "signing-token"])
@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/tags/v1"])
@pytest.mark.parametrize("sha", ["a" * 40, "b" * 64], ids=["sha1", "sha256"])
@pytest.mark.parametrize("origin", FORGES)
def test_sample_push_signed_by_us_is_genuine(origin: Source, sha: str, ref: str, secret: str) -> None:
    url = "file:///srv/git/demo"
    body = push_body(origin, repo_url=url, repo_full_name="demo/demo", ref=ref, sha=sha)
    event = push_event_name(origin, ref)
    headers = sign(origin, secret, event=event, body=body, delivery_id="d-1", now=1000.9)
    source = WebhookSource(name=origin.value, forge=FORGES[origin], secrets=(secret,))
    outcome = triage(source, headers, body, now=1000.9)
    assert isinstance(outcome, UnderstoodDelivery)
    assert outcome.delivery_id == "d-1"
    assert outcome.event == Push(
        repo_full_name="demo/demo",
        repo_url=url,
        ref=ref,
        commit_sha=sha,
        before_sha=None,
        sender="solstice",
    )
    assert json.loads(body)["ref"] == ref


@pytest.mark.parametrize(
    ("ref", "event", "kind"),
    [("refs/heads/main", "Push Hook", "push"), ("refs/tags/v1", "Tag Push Hook", "tag_push")],
)
def test_sample_push_of_gitlab_says_whether_it_is_of_a_tag(ref: str, event: str, kind: str) -> None:
    body = push_body(Source.GITLAB, repo_url="https://h/r", repo_full_name="a/b", ref=ref, sha="a" * 40)
    assert push_event_name(Source.GITLAB, ref) == event
    assert (json.loads(body)["object_kind"], json.loads(body)["event_name"]) == (kind, kind)


@pytest.mark.parametrize("sha", ["a" * 40, "b" * 64], ids=["sha1", "sha256"])
@pytest.mark.parametrize("origin", FORGES)
def test_sample_push_is_of_a_new_ref(origin: Source, sha: str) -> None:
    body = push_body(origin, repo_url="https://h/r", repo_full_name="a/b", ref="refs/heads/x", sha=sha)
    assert json.loads(body)["before"] == "0" * len(sha)


@pytest.mark.parametrize(
    ("origin", "agent"),
    [
        (Source.GITHUB, "GitHub-Hookshot/"),
        (Source.GITLAB, "GitLab/"),
        (Source.GITEA, "Go-http-client/"),
        (Source.FORGEJO, "Go-http-client/"),
    ],
)
def test_signed_delivery_names_the_program_that_the_forge_names(origin: Source, agent: str) -> None:
    headers = sign(origin, "s", event="push", body=b"{}", delivery_id="d", now=0)
    assert headers["user-agent"].startswith(agent)


def test_forgejo_signs_as_gitea_and_github_too() -> None:
    """Its own deliveries do, for receivers that know no other."""
    forgejo = sign(Source.FORGEJO, "s", event="push", body=b"{}", delivery_id="d", now=0)
    for origin in (Source.GITEA, Source.GITHUB):
        other = sign(origin, "s", event="push", body=b"{}", delivery_id="d", now=0)
        assert {
            name: value for name, value in other.items() if name.startswith("x-")
        }.items() <= forgejo.items()


def test_manual_requests_come_by_no_webhook() -> None:
    with pytest.raises(ValueError, match="no webhook"):
        sign(Source.MANUAL, "s", event="push", body=b"", delivery_id="d", now=0)
