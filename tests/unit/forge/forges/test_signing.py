import json

import pytest

from solstice_common.messages import Source as Origin
from solstice_forge.decisions.sources import FORGES, Source
from solstice_forge.decisions.triage import UnderstoodDelivery, triage
from solstice_forge.forges.events import Push
from solstice_forge.forges.samples import push_body, push_event_name
from solstice_forge.forges.signing import sign

TOKEN = "whsec_c29tZSBzaWduaW5nIGtleQ=="


@pytest.mark.parametrize("secret", ["plain", TOKEN], ids=["secret", "signing-token"])
@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/tags/v1"])
@pytest.mark.parametrize("sha", ["a" * 40, "b" * 64], ids=["sha1", "sha256"])
@pytest.mark.parametrize("origin", FORGES)
def test_sample_push_signed_by_us_is_genuine(origin: Origin, sha: str, ref: str, secret: str) -> None:
    url = "file:///srv/git/demo"
    body = push_body(origin, repo_url=url, repo_full_name="demo/demo", ref=ref, sha=sha)
    event = push_event_name(origin, ref)
    headers = sign(origin, secret, event=event, body=body, delivery_id="d-1", now=1000.9)
    source = Source(name=origin.value, forge=FORGES[origin], secrets=(secret,))
    outcome = triage(source, headers, body, now=1000.9)
    assert isinstance(outcome, UnderstoodDelivery)
    assert outcome.delivery_id == "d-1"
    assert outcome.event == Push(
        repo_full_name="demo/demo",
        repo_url=url,
        ref=ref,
        commit_sha=sha,
        before_sha=None,
        sender=outcome.event.sender if isinstance(outcome.event, Push) else None,
    )
    assert json.loads(body)["ref"] == ref


def test_manual_requests_come_by_no_webhook() -> None:
    with pytest.raises(ValueError, match="no webhook"):
        sign(Origin.MANUAL, "s", event="push", body=b"", delivery_id="d", now=0)
