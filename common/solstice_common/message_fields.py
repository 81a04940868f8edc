"""What may stand in a field of a message: one type for each kind of value, as strict as its reader has to be. Pure."""

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field

REPO_URL_SCHEMES: Final = frozenset({"https", "http", "ssh", "git", "file"})
"""What may stand in `repo_url`; which of them are fetched is for each orchestrator to say (`GIT_PROTOCOLS`)."""

MAX_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""

_TIMESTAMP_PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-]00:00)$"
)
_TIMESTAMP: Final = re.compile(_TIMESTAMP_PATTERN[1:-1])
_ENCODED_CONTROL: Final = re.compile(r"%(?:[01][0-9a-f]|7f)", re.IGNORECASE)
_REPO_URL_PATTERN: Final = (
    r"^(?:https?://[^\s@/?#\\\-][^\s@/?#\\]*(?:[/?#][^\s\\]*)?"
    r"|(?:ssh|git)://(?:[^\s:@/?#\\\-][^\s:@/?#\\]*@)?[^\s@/?#\\\-][^\s@/?#\\]*(?:[/?#][^\s\\]*)?"
    r"|file://(?:localhost)?/[^\s\\]*)$"
)
"""The rules of `_repo_url` as far as a pattern can say them, for readers of the JSON Schema."""
_WORKFLOW_PATH_PATTERN: Final = r"^(?![/\-])(?!(?:.*/)?\.\.(?:/|$))[^\s\\]+$"


def _timestamp(text: str) -> str:
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError("must be an RFC 3339 time in UTC, like 2026-01-31T12:00:00Z")
    _check_second(text[:19])
    return text


# What comes in together was made in the same second, or in a few.
@lru_cache(maxsize=64)
def _check_second(text: str) -> None:
    datetime.fromisoformat(text.upper())  # ValueError: there is no such moment


# Few repositories are pushed to again and again, and taking a URL apart costs more than the rest of a message.
@lru_cache(maxsize=1024)
def _repo_url(url: str) -> str:
    """Refuse what git would take for an option, a helper program or a place to leak a password."""
    if url.startswith("-"):
        raise ValueError("must not start with '-': git would take it for an option")
    if not url.isprintable() or " " in url or _ENCODED_CONTROL.search(url):
        raise ValueError("must not hold white space or control characters")
    if "\\" in url:
        raise ValueError("must not hold a backslash: programs disagree about what it means in a URL")
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ValueError(
            f"must be a URL with one of the schemes {', '.join(sorted(REPO_URL_SCHEMES))}; "
            "write git@host:path as ssh://git@host/path"
        )
    if scheme not in REPO_URL_SCHEMES:
        raise ValueError(f"has the scheme {scheme!r}; allowed are {', '.join(sorted(REPO_URL_SCHEMES))}")
    _authority(scheme, urlsplit(url))
    return url


def _authority(scheme: str, parts: SplitResult) -> None:
    if parts.password is not None or (parts.username is not None and scheme in {"http", "https"}):
        raise ValueError("must not hold credentials: they would stand in messages and logs")
    if scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise ValueError("must name a file on this machine: file:///path")
    elif not parts.hostname or parts.hostname.startswith("-") or parts.netloc.startswith("-"):
        raise ValueError("must name a host")
    elif parts.netloc.count("@") > 1 or parts.port == 0:  # `port` raises ValueError for what is no number
        raise ValueError("must name one host and a port from 1 to 65535")


def _workflow_path(path: str) -> str:
    if (
        path.startswith(("/", "-"))
        or "\\" in path
        or " " in path
        or not path.isprintable()
        or ".." in path.split("/")
    ):
        raise ValueError("must be a plain relative path inside the repository")
    return path


Timestamp = Annotated[
    str,
    AfterValidator(_timestamp),
    Field(json_schema_extra={"format": "date-time", "pattern": _TIMESTAMP_PATTERN}),
]
"""RFC 3339 in UTC, kept as the sender wrote it."""
# Lengths stand before the function: behind it, pydantic measures them with functions of its own in Python.
RepoUrl = Annotated[
    str,
    Field(min_length=1, max_length=2048, json_schema_extra={"format": "iri", "pattern": _REPO_URL_PATTERN}),
    AfterValidator(_repo_url),
]
CommitSha = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
"""A full commit id: 40 hexadecimal digits, or 64 in a SHA-256 repository."""
WorkflowPath = Annotated[
    str,
    Field(min_length=1, max_length=512, json_schema_extra={"pattern": _WORKFLOW_PATH_PATTERN}),
    AfterValidator(_workflow_path),
]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""What `runs_on` names."""
Identifier = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
"""A UUID in its lower-case text form (RFC 9562)."""
Name = Annotated[
    str,
    Field(min_length=1, max_length=255, pattern=r"^[^\u0000-\u001f\u007f-\u009f]+$"),
]
"""A short text without control characters: it stands in logs, on terminals and in HTTP headers."""
Text = Annotated[str, Field(max_length=4096)]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Traceparent = Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
"""W3C Trace Context."""
