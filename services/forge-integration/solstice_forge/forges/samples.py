"""A minimal genuine push of each forge, for trials, the demo, tests and benchmarks. Pure."""

from typing import Final

import orjson

from solstice_common.messages import Source

SENDER: Final = "solstice"


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
