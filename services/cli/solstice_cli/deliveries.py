"""Deliveries as the forges send them, made here: for trying things, never mistaken for a real one. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import orjson
from solstice_common.api_client import Document
from solstice_common.messages import Source
from solstice_forge.forges.signatures import hex_digest

EventName = Literal["push", "pull_request"]

SENDER: Final = "somebody"
ZERO: Final = "0" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What the delivery is to tell."""

    repo_url: str
    repo_full_name: str
    ref: str
    commit_sha: str
    number: int = 1
    """Of the pull request, where the event is one."""

    @property
    def branch(self) -> str:
        return self.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDelivery:
    """Headers and body, ready to be posted."""

    delivery_id: str
    headers: Mapping[str, str]
    body: bytes


def signed_delivery(
    source: Source, event: EventName, push: Push, *, secret: str, delivery_id: str
) -> SignedDelivery:
    """The delivery of that forge for that event, signed with `secret`."""
    if source is Source.GITLAB:
        return _gitlab(event, push, secret, delivery_id)
    document = _push(push) if event == "push" else _pull_request(push)
    body = orjson.dumps(document)
    digest = hex_digest(secret, body)
    forge = {"github": "GitHub", "gitea": "Gitea", "forgejo": "Forgejo"}[source.value]
    headers = {
        "content-type": "application/json",
        "user-agent": "solstice-webhook-send",
        f"X-{forge}-Event": event,
        f"X-{forge}-Delivery": delivery_id,
    }
    if source is Source.GITHUB:
        headers["X-Hub-Signature-256"] = f"sha256={digest}"
    else:
        headers[f"X-{forge}-Signature"] = digest
    return SignedDelivery(delivery_id=delivery_id, headers=headers, body=body)


def _repository(push: Push) -> Document:
    owner, _, name = push.repo_full_name.rpartition("/")
    return {
        "id": 1,
        "name": name,
        "full_name": push.repo_full_name,
        "owner": {"login": owner},
        "clone_url": push.repo_url,
        "default_branch": "main",
        "private": False,
    }


def _push(push: Push) -> Document:
    commit = {"id": push.commit_sha, "message": "A commit", "added": [], "modified": [], "removed": []}
    return {
        "ref": push.ref,
        "before": ZERO,
        "after": push.commit_sha,
        "commits": [commit],
        "head_commit": commit,
        "repository": _repository(push),
        "pusher": {"login": SENDER, "name": SENDER},
        "sender": {"login": SENDER},
    }


def _pull_request(push: Push) -> Document:
    repository = _repository(push)
    return {
        "action": "opened",
        "number": push.number,
        "pull_request": {
            "number": push.number,
            "title": "A change",
            "draft": False,
            "head": {"ref": push.branch, "sha": push.commit_sha, "repo_id": 1, "repo": repository},
            "base": {"ref": "main", "sha": ZERO, "repo_id": 1, "repo": repository},
        },
        "repository": repository,
        "sender": {"login": SENDER},
    }


def _gitlab(event: EventName, push: Push, secret: str, delivery_id: str) -> SignedDelivery:
    project = {
        "id": 1,
        "path_with_namespace": push.repo_full_name,
        "git_http_url": push.repo_url,
        "default_branch": "main",
    }
    document: Document
    if event == "push":
        name, kind = "Push Hook", "push"
        document = {
            "event_name": kind,
            "before": ZERO,
            "after": push.commit_sha,
            "checkout_sha": push.commit_sha,
            "ref": push.ref,
            "user_username": SENDER,
            "commits": [{"id": push.commit_sha, "message": "A commit"}],
            "total_commits_count": 1,
        }
    else:
        name, kind = "Merge Request Hook", "merge_request"
        document = {
            "event_type": kind,
            "user": {"username": SENDER},
            "object_attributes": {
                "iid": push.number,
                "action": "open",
                "source_branch": push.branch,
                "target_branch": "main",
                "source_project_id": 1,
                "target_project_id": 1,
                "source": project,
                "target": project,
                "last_commit": {"id": push.commit_sha, "message": "A commit"},
                "draft": False,
            },
        }
    headers = {
        "content-type": "application/json",
        "user-agent": "solstice-webhook-send",
        "X-Gitlab-Event": name,
        "X-Gitlab-Event-UUID": delivery_id,
        "Idempotency-Key": delivery_id,
        "X-Gitlab-Token": secret,
    }
    body = orjson.dumps({"object_kind": kind, **document, "project": project})
    return SignedDelivery(delivery_id=delivery_id, headers=headers, body=body)
