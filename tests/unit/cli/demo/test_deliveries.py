"""The forge modules verify and parse the deliveries of `solstice webhook send`."""

import pytest

from solstice_cli.demo.deliveries import EventName, RefChange, SignedDelivery, signed_delivery
from solstice_common.messages import Source
from solstice_forge.forges import github, gitlab
from solstice_forge.forges.events import ChangeRequest, Push
from solstice_forge.forges.gitea_family import FORGEJO, GITEA
from solstice_forge.forges.protocol import Forge, Forged, Genuine

NOW = 1_800_000_000.0
FORGES: dict[Source, Forge] = {
    Source.GITHUB: github,
    Source.FORGEJO: FORGEJO,
    Source.GITEA: GITEA,
    Source.GITLAB: gitlab,
}
CHANGE = RefChange(
    repo_url="https://forge.example/acme/anvil.git",
    repo_full_name="acme/anvil",
    ref="refs/heads/topic",
    commit_sha="c" * 40,
    number=7,
)

each_forge = pytest.mark.parametrize("source", FORGES, ids=lambda source: source.value)


def made(source: Source, event: EventName) -> SignedDelivery:
    return signed_delivery(source, event, CHANGE, secret="s3cret", delivery_id="an-id", now=NOW)


def lower(delivery: SignedDelivery) -> dict[str, str]:
    return {name.lower(): value for name, value in delivery.headers.items()}


@each_forge
@pytest.mark.parametrize("event", ["push", "pull_request"])
def test_delivery_is_genuine(source: Source, event: EventName) -> None:
    delivery = made(source, event)
    forge = FORGES[source]
    assert isinstance(forge.verify(lower(delivery), delivery.body, ["s3cret"], NOW), Genuine)
    assert isinstance(forge.verify(lower(delivery), delivery.body, ["another"], NOW), Forged)
    assert forge.delivery_id(lower(delivery)) == "an-id"


@each_forge
def test_push_describes_the_change(source: Source) -> None:
    delivery = made(source, "push")
    forge = FORGES[source]
    event = forge.parse(forge.event_name(lower(delivery)) or "", delivery.body)
    assert isinstance(event, Push)
    assert (event.repo_url, event.repo_full_name, event.ref, event.commit_sha) == (
        CHANGE.repo_url,
        CHANGE.repo_full_name,
        CHANGE.ref,
        CHANGE.commit_sha,
    )


@each_forge
def test_pull_request_describes_the_change(source: Source) -> None:
    delivery = made(source, "pull_request")
    forge = FORGES[source]
    event = forge.parse(forge.event_name(lower(delivery)) or "", delivery.body)
    assert isinstance(event, ChangeRequest)
    assert (event.repo_url, event.number, event.head_ref, event.commit_sha) == (
        CHANGE.repo_url,
        7,
        "topic",
        CHANGE.commit_sha,
    )
    assert event.is_fork is False
