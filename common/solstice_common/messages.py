"""`jobrequest.v1` and `jobstatus.v1`: the two messages of Solstice CI, and their canonical bytes.

Canonical: UTF-8 JSON, keys sorted at every level, no white space, a field that was never set is left out. Fields this
version does not know are kept, so decoding and encoding a canonical message gives the same bytes, and an older
service never strips what a newer one added. The pydantic models are the source; `schemas/*.json` renders them.
"""

import re
import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from solstice_common.errors import InvalidMessage

MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Far above any honest request, far below the 16 MiB that RabbitMQ 4 allows."""

REPO_URL_SCHEMES: Final = frozenset({"https", "http", "ssh", "git", "file"})
"""What may stand in `repo_url`; which of them are fetched is for each orchestrator to say (`GIT_PROTOCOLS`)."""

_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]00:00)", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")


def _timestamp(text: str) -> str:
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError("must be an RFC 3339 time in UTC, like 2026-01-31T12:00:00Z")
    parse_timestamp(text)
    return text


def _repo_url(url: str) -> str:
    """Refuse what git would take for an option, a helper program or a place to leak a password."""
    if url.startswith("-"):
        raise ValueError("must not start with '-': git would take it for an option")
    if _CONTROL.search(url):
        raise ValueError("must not hold white space or control characters")
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ValueError(
            f"must be a URL with one of the schemes {', '.join(sorted(REPO_URL_SCHEMES))}; "
            "write git@host:path as ssh://git@host/path"
        )
    if scheme not in REPO_URL_SCHEMES:
        raise ValueError(f"has the scheme {scheme!r}; allowed are {', '.join(sorted(REPO_URL_SCHEMES))}")
    parts = urlsplit(url)
    if parts.password is not None or (parts.username is not None and scheme in {"http", "https"}):
        raise ValueError("must not hold credentials: they would stand in messages and logs")
    if scheme == "file":
        if parts.netloc not in {"", "localhost"}:
            raise ValueError("must name a file on this machine: file:///path")
    elif not parts.hostname or parts.hostname.startswith("-"):
        raise ValueError("must name a host")
    return url


def _workflow_path(path: str) -> str:
    if path.startswith(("/", "-")) or "\\" in path or _CONTROL.search(path) or ".." in path.split("/"):
        raise ValueError("must be a plain relative path inside the repository")
    return path


Timestamp = Annotated[str, AfterValidator(_timestamp)]
"""RFC 3339 in UTC, kept as the sender wrote it."""
RepoUrl = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_repo_url)]
CommitSha = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
"""A full commit id: 40 hexadecimal digits, or 64 in a SHA-256 repository."""
WorkflowPath = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_workflow_path)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""What `runs_on` names."""
Identifier = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
"""A UUID in its lower-case text form (RFC 9562)."""
Name = Annotated[str, Field(min_length=1, max_length=255)]
Text = Annotated[str, Field(max_length=4096)]


class Source(StrEnum):
    """Who asked."""

    GITHUB = "github"
    FORGEJO = "forgejo"
    GITEA = "gitea"
    GITLAB = "gitlab"
    MANUAL = "manual"


class Priority(StrEnum):
    """Priority class of a job, most urgent first."""

    CRITICAL = "critical"
    HIGH = "high"
    DEFAULT = "default"
    LOW = "low"


class _Wire(BaseModel):
    """A message on the wire: strict in what we use, silent about what we do not know."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    VERSION: ClassVar[str]

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a message.

        Raises InvalidMessage; its reason is one of `oversize`, `not_utf8`, `not_json`, `not_an_object`,
        `unknown_version`, `invalid_field`.
        """
        if len(body) > MAX_MESSAGE_BYTES:
            raise InvalidMessage("oversize", f"{len(body)} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise _diagnose(cls.VERSION, body, error) from None

    def encode(self) -> bytes:
        """The canonical bytes; raises InvalidMessage when an unknown field holds what JSON cannot carry."""
        try:
            return orjson.dumps(self.model_dump(mode="json", exclude_unset=True), option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError as error:
            raise InvalidMessage("invalid_field", str(error)) from None


class JobRequestV1(_Wire):
    """One wish to build a commit."""

    VERSION: ClassVar[str] = "jobrequest.v1"

    schema_version: Literal["jobrequest.v1"]
    request_id: Identifier
    source: Annotated[Source, Field(strict=False)]
    repo_url: RepoUrl
    commit_sha: CommitSha
    submitted_at: Timestamp
    workflow_path: WorkflowPath | None = None
    workflow_job_id: Name | None = None
    runs_on: Label | None = None
    ref: Name | None = None
    event: Name | None = None
    repo_full_name: Name | None = None
    change_number: Annotated[int, Field(ge=1)] | None = None
    head_repo_url: RepoUrl | None = None
    trusted: bool | None = None
    """False for code from somebody who may not push here (a fork); absent counts as not trusted for forges."""
    sender: Name | None = None
    source_name: Name | None = None
    delivery_id: Name | None = None
    priority: Annotated[Priority, Field(strict=False)] | None = None
    idempotency_key: Name | None = None
    traceparent: Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")] | None = None
    """W3C Trace Context."""


class JobStatusV1(_Wire):
    """What became of a job, or of a whole run when `job_id` is absent."""

    VERSION: ClassVar[str] = "jobstatus.v1"

    schema_version: Literal["jobstatus.v1"]
    status_id: Identifier
    """Stable for one transition: a repeated publish carries the same."""
    request_id: Identifier
    run_id: Identifier
    sequence: Annotated[int, Field(ge=1)]
    """Grows with every status of the run: a reader keeps the highest per context and ignores older ones."""
    source: Annotated[Source, Field(strict=False)]
    repo_url: RepoUrl
    commit_sha: CommitSha
    context: Name
    """What the commit status is called: `solstice/JOB`, or `solstice` for the whole run."""
    state: Name
    """A job state of DESIGN section 7 (`waiting`, `running`, `succeeded`, `failed`, ...)."""
    occurred_at: Timestamp
    reason: Name | None = None
    description: Text | None = None
    job_id: Identifier | None = None
    job_name: Name | None = None
    attempt: Annotated[int, Field(ge=1)] | None = None
    exit_code: int | None = None
    target_url: Text | None = None
    source_name: Name | None = None
    repo_full_name: Name | None = None
    ref: Name | None = None
    change_number: Annotated[int, Field(ge=1)] | None = None
    delivery_id: Name | None = None
    traceparent: Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")] | None = None


MESSAGES: Final[tuple[type[_Wire], ...]] = (JobRequestV1, JobStatusV1)
"""Every message there is, for `schemas/` and its test."""


def parse_timestamp(text: str) -> datetime:
    """The moment an RFC 3339 time in UTC names, to the microsecond; ValueError when there is no such moment."""
    whole, dot, rest = text.upper().partition(".")
    digits = rest.rstrip("Z").partition("+")[0].partition("-")[0]
    moment = datetime.strptime(whole.removesuffix("Z")[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    return moment.replace(microsecond=int(digits[:6].ljust(6, "0"))) if dot else moment


def format_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds: `2026-01-31T12:00:00.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_REQUEST_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:solstice-ci:jobrequest.v1")


def derive_request_id(*parts: str) -> str:
    """A stable request id (UUIDv5) from what makes the request unique: source name, delivery id, ...."""
    return str(uuid.uuid5(_REQUEST_NAMESPACE, "\x1f".join(parts)))


def _diagnose(expected: str, body: bytes, error: ValidationError) -> InvalidMessage:
    """Why `body` is no `expected`, in the words of whoever has to mend it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as undecodable:
        return InvalidMessage("not_utf8", f"byte {undecodable.start} is not UTF-8")
    try:
        document: Any = orjson.loads(text)
    except orjson.JSONDecodeError as unreadable:
        return InvalidMessage("not_json", str(unreadable))
    if not isinstance(document, dict):
        return InvalidMessage(
            "not_an_object", f"a JSON object is needed, this is a {type(document).__name__}"
        )
    version = document.get("schema_version")
    if version is not None and version != expected:
        return InvalidMessage(
            "unknown_version", f"schema_version is {version!r}, this service reads {expected!r}"
        )
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_url=False, include_input=False)
    ]
    return InvalidMessage("invalid_field", "; ".join(problems))
