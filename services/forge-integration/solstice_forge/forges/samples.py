"""Makes genuine deliveries of each forge: bodies and headers. Pure.

For trials, the demo, tests and benchmarks.
"""

from typing import Final

import orjson

from solstice_common.messages import Source
from solstice_forge.forges import standard_webhooks
from solstice_forge.forges.signatures import hex_digest

SENDER: Final = "solstice"
_CONTENT: Final = {"content-type": "application/json"}


def push_event_name(source: Source, ref: str) -> str:
    """Return the forge's header name for a push to `ref`."""
    if source is not Source.GITLAB:
        return "push"
    return "Tag Push Hook" if ref.startswith("refs/tags/") else "Push Hook"


def push_body(source: Source, *, repo_url: str, repo_full_name: str, ref: str, sha: str) -> bytes:
    """Return the body of a push that makes the new `ref` point at `sha`."""
    new = {"ref": ref, "before": "0" * len(sha), "after": sha}
    if source is Source.GITLAB:
        kind = "tag_push" if ref.startswith("refs/tags/") else "push"
        project = {"path_with_namespace": repo_full_name, "git_http_url": repo_url}
        return orjson.dumps(
            {
                "object_kind": kind,
                "event_name": kind,
                **new,
                "checkout_sha": sha,
                "user_username": SENDER,
                "project": project,
                "commits": [],
            }
        )
    return orjson.dumps(
        {
            **new,
            "head_commit": {"id": sha},
            "repository": {"full_name": repo_full_name, "clone_url": repo_url},
            "sender": {"login": SENDER},
            "commits": [],
        }
    )


def sign(
    source: Source, secret: str, *, event: str, body: bytes, delivery_id: str, now: float
) -> dict[str, str]:
    """Return the headers of a genuine JSON delivery.

    `event` is the forge's own name (`push`, `Push Hook`). A GitLab secret that starts with `whsec_` signs; any other is
    sent as the secret token.
    """
    match source:
        case Source.GITLAB:
            return {
                **_CONTENT,
                "user-agent": "GitLab/19.0.0",
                "idempotency-key": delivery_id,
                "x-gitlab-event": event,
                **_gitlab_proof(secret, body, delivery_id, str(int(now))),
            }
        case Source.GITHUB:
            return (
                _CONTENT
                | _github(secret, event, body, delivery_id)
                | {"user-agent": "GitHub-Hookshot/0000000"}
            )
        case Source.GITEA:
            return _CONTENT | _gitea("gitea", secret, event, body, delivery_id)
        case Source.FORGEJO:
            # Forgejo sends Gitea's headers as well as its own.
            gitea = _gitea("gitea", secret, event, body, delivery_id)
            return _CONTENT | gitea | _gitea("forgejo", secret, event, body, delivery_id)
        case Source.MANUAL:
            raise ValueError("manual requests come by no webhook")


def _github(secret: str, event: str, body: bytes, delivery_id: str) -> dict[str, str]:
    return {
        "x-github-event": event,
        "x-github-delivery": delivery_id,
        "x-hub-signature-256": f"sha256={hex_digest(secret, body)}",
    }


def _gitea(name: str, secret: str, event: str, body: bytes, delivery_id: str) -> dict[str, str]:
    return {
        "user-agent": "Go-http-client/1.1",
        f"x-{name}-event": event,
        f"x-{name}-event-type": event,
        f"x-{name}-delivery": delivery_id,
        f"x-{name}-signature": hex_digest(secret, body),
        # Both imitate GitHub, for receivers that know no other.
        **_github(secret, event, body, delivery_id),
    }


def _gitlab_proof(secret: str, body: bytes, delivery_id: str, timestamp: str) -> dict[str, str]:
    if not secret.startswith(standard_webhooks.TOKEN_PREFIX):
        return {"x-gitlab-token": secret}
    return {
        standard_webhooks.ID: delivery_id,
        standard_webhooks.TIMESTAMP: timestamp,
        standard_webhooks.SIGNATURE: standard_webhooks.sign(secret, delivery_id, timestamp, body),
    }
