"""The types of the fields of messages, one for each kind of value. Pure.

Each is as strict as its reader has to be.
"""

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationInfo

from solstice_common.values.repo_urls import canonical, spelled

RESERVED_IDS: Final = ("replay:", "reconcile:", "schedule:")
"""The prefixes of the ids and idempotency keys that we make ourselves; none may come from outside."""

MAX_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""

_TIMESTAMP_PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-]00:00)$"
)
_TIMESTAMP: Final = re.compile(_TIMESTAMP_PATTERN[1:-1])
_REPO_URL_PATTERN: Final = (
    r"^(?!.*(?:%2[fF]|%5[cC]|/(?:\.|%2[eE]){1,2}(?:/|;|$)))"
    r"(?:https?://[^\s@/?#\\%\-][^\s@/?#\\%]*(?:/[^\s\\?#]*)?"
    r"|(?:ssh|git)://(?:[^\s:@/?#\\%\-][^\s:@/?#\\%]*@)?[^\s@/?#\\%\-][^\s@/?#\\%]*(?:/[^\s\\?#]*)?"
    r"|file://(?:localhost)?/[^\s\\?#]*)$"
)
"""The rules of `repo_urls.canonical` as far as a pattern can say them, for readers of the JSON Schema."""
_WORKFLOW_PATH_PATTERN: Final = r"^(?![/\-])(?!(?:.*/)?\.\.(?:/|$))[^\s\\]+$"


def _timestamp(text: str) -> str:
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError("must be an RFC 3339 time in UTC, like 2026-01-31T12:00:00Z")
    _check_second(text[:19])
    return text


# Messages that arrive together were made within a few seconds.
@lru_cache(maxsize=64)
def _check_second(text: str) -> None:
    datetime.fromisoformat(text)  # ValueError: there is no such moment


STORED: Final = "stored"
"""The context of a message that was accepted long ago: parts of a URL that today's rules refuse stay
unchanged.

Nothing is fetched from such a URL, and it gets no secret: git and the rules call `canonical` themselves.
"""


def _repo_url(url: str, info: ValidationInfo) -> str:
    return spelled(url) if info.context == STORED else canonical(url)


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
"""RFC 3339 in UTC, stored as the sender wrote it."""
# Lengths stand before the function: after it, pydantic would check them with Python functions.
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
MAX_INPUTS: Final = 32
MAX_INPUT_CHARACTERS: Final = 1024
MAX_ALL_INPUT_CHARACTERS: Final = 8192
"""Names and values of all manual inputs together; each job of the run gets them all."""


def _inputs(inputs: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in inputs.items()) > MAX_ALL_INPUT_CHARACTERS:
        raise ValueError(f"names and values have at most {MAX_ALL_INPUT_CHARACTERS} characters together")
    return inputs


InputName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]
InputValue = Annotated[str, Field(max_length=MAX_INPUT_CHARACTERS, pattern=r"^[^\u0000]*$")]
Inputs = Annotated[
    dict[InputName, InputValue],
    Field(max_length=MAX_INPUTS, json_schema_extra={"additionalProperties": False}),
    AfterValidator(_inputs),
]
"""Values of manual inputs by name."""
OutputText = Annotated[str, Field(max_length=32 * 1024, pattern=r"^[^\u0000]*$")]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Traceparent = Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
"""W3C Trace Context."""
