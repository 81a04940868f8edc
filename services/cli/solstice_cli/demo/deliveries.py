"""Makes deliveries as the forges send them, to try things without a forge. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import orjson

from solstice_common.messages import Source
from solstice_forge.forges.samples import SENDER, push_body, push_event_name, sign

EventName = Literal["push", "pull_request"]

BASE_BRANCH = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefChange:
    """The change that a delivery reports: a ref now points at this commit."""

    repo_url: str
    repo_full_name: str
    ref: str
    commit_sha: str
    number: int = 1
    """The number of the pull or merge request, where the event is one."""

    @property
    def branch(self) -> str:
        return self.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDelivery:
    """Headers and body of a signed delivery."""

    headers: Mapping[str, str]
    body: bytes


def signed_delivery(
    source: Source, event: EventName, change: RefChange, *, secret: str, delivery_id: str, now: float
) -> SignedDelivery:
    """Return the delivery that `source` makes of a push or an opened change request."""
    if event == "push":
        name = push_event_name(source, change.ref)
        body = push_body(
            source,
            repo_url=change.repo_url,
            repo_full_name=change.repo_full_name,
            ref=change.ref,
            sha=change.commit_sha,
        )
    elif source is Source.GITLAB:
        name, body = "Merge Request Hook", _merge_request(change)
    else:
        name, body = "pull_request", _pull_request(change)
    headers = sign(source, secret, event=name, body=body, delivery_id=delivery_id, now=now)
    return SignedDelivery(headers=headers, body=body)


def _pull_request(change: RefChange) -> bytes:
    repository = {"full_name": change.repo_full_name, "clone_url": change.repo_url}
    side = {"repo_id": 1, "repo": repository}
    return orjson.dumps(
        {
            "action": "opened",
            "number": change.number,
            "pull_request": {
                "draft": False,
                "head": {"ref": change.branch, "sha": change.commit_sha, **side},
                "base": {"ref": BASE_BRANCH, "sha": "0" * len(change.commit_sha), **side},
            },
            "repository": repository,
            "sender": {"login": SENDER},
        }
    )


def _merge_request(change: RefChange) -> bytes:
    project = {"path_with_namespace": change.repo_full_name, "git_http_url": change.repo_url}
    return orjson.dumps(
        {
            "object_kind": "merge_request",
            "event_type": "merge_request",
            "user": {"username": SENDER},
            "project": project,
            "object_attributes": {
                "iid": change.number,
                "action": "open",
                "source_branch": change.branch,
                "target_branch": BASE_BRANCH,
                "source_project_id": 1,
                "target_project_id": 1,
                "source": project,
                "last_commit": {"id": change.commit_sha},
                "draft": False,
            },
        }
    )
