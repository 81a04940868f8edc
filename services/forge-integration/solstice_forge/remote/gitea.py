"""Gitea's API as we call it. Pure."""

from solstice_forge.remote.gitea_family import (
    PACE,
    api_url,
    find_commit,
    find_head,
    headers,
    may_write,
    set_status,
)

__all__ = ["PACE", "api_url", "find_commit", "find_head", "headers", "may_write", "set_status"]
