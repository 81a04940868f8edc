"""Read names of container images, and decide which the operator allows. Pure."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

MAX_NAME: Final = 400
_NAME: Final = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""As github.com/distribution/reference writes them; no other way to name an image."""


def is_image_name(text: str) -> bool:
    """Return whether this can name an image in a registry."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def full_name(name: str) -> str:
    """Return the name with its registry: `python:3.12` is `docker.io/library/python:3.12`."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def is_allowed(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a full name matches one of the patterns; `*` stands for any characters."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
