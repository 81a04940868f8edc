"""`jobrequest.v1`, `jobcancel.v1` and `jobstatus.v1`: the messages of Solstice CI, and their canonical bytes.

The pydantic models are the source; `schemas/*.json` renders them. `canonical.py` says what canonical is.
"""

import uuid
from enum import StrEnum
from functools import lru_cache
from hashlib import sha1
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from solstice_common.errors import InvalidMessage
from solstice_common.messages.canonical import WireMessage, WirePart
from solstice_common.messages.fields import (
    MAX_INTEGER,
    STORED,
    CommitSha,
    Count,
    Identifier,
    Inputs,
    Label,
    Name,
    OutputText,
    RepoUrl,
    Text,
    Timestamp,
    Traceparent,
    WorkflowPath,
)

MAX_FAILED_TESTS: Final = 50
"""As many as a check of GitHub shows on lines."""
MAX_TEST_NAME: Final = 300
"""Characters of the name of a failed test, and of its file."""
MAX_TEST_MESSAGE: Final = 500
REMEMBERED_BYTES: Final = 4096
"""The longest request that `decode_request` caches; a forge's request is a quarter of that."""


class Source(StrEnum):
    """The origin of a request."""

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


class JobRequestV1(WireMessage):
    """One request to build a commit."""

    VERSION: ClassVar[str] = "jobrequest.v1"

    schema_version: Literal["jobrequest.v1"] = "jobrequest.v1"
    """Equals the routing key, which says the version where this is absent."""
    request_id: Identifier
    """UUID of the request. Forge requests derive it (UUIDv5), so that the same delivery is the same request."""
    source: Annotated[Source, Field(strict=False)]
    repo_url: RepoUrl
    """What git fetches from. No credentials, no helper programs; `git@host:path` is written `ssh://git@host/path`."""
    commit_sha: CommitSha
    """Full commit id: 40 hexadecimal digits, or 64 in a SHA-256 repository."""
    submitted_at: Timestamp
    """When the request was made: RFC 3339, UTC."""
    workflow_path: WorkflowPath | None = None
    """Workflow file inside the repository, instead of `.solstice/workflow.kdl`."""
    workflow_job_id: Name | None = None
    """Only this job of the workflow, and what it needs."""
    runs_on: Label | None = None
    """Label for jobs whose workflow names none."""
    ref: Name | None = None
    """The full ref that was pushed, or the change request's head: `refs/heads/main`."""
    event: Name | None = None
    """What happened at the forge: `push`, `pull_request`, ..."""
    before_sha: CommitSha | None = None
    """What the ref pointed at before it was pushed; absent for a new ref."""
    default_branch: Name | None = None
    """The repository's default branch, without `refs/heads/`."""
    repo_full_name: Name | None = None
    """What the forge calls the repository: `owner/name`."""
    change_number: Count | None = None
    """Number of the pull or merge request."""
    target_branch: Name | None = None
    """The branch that a change request is to be merged into, without `refs/heads/`."""
    head_repo_url: RepoUrl | None = None
    """Where a change request's commits come from, when it is another repository (a fork)."""
    trusted: bool | None = None
    """False for code of an author who may not push here (a fork); if absent, the reader's V1_TRUST decides."""
    sender: Name | None = None
    """Login of who caused the event."""
    source_name: Name | None = None
    """Which configured hook received it."""
    delivery_id: Name | None = None
    """The forge's id of the delivery."""
    priority: Annotated[Priority, Field(strict=False)] | None = None
    """Priority class; chosen by policy, never by a change request."""
    needs_approval: bool | None = None
    """True: its jobs wait until a person who may says that they may run. Services that do not know this field refuse or
    run it by `trusted` alone."""
    approves: bool | None = None
    """True: a person who may push asked for this very commit of the change request to be built, so it needs no approval and
    takes the place of the run that does."""
    not_before: Timestamp | None = None
    """Not to be started before this moment: RFC 3339, UTC. Services that do not know this field start it at once."""
    inputs: Inputs | None = None
    """Values of the manual inputs that the workflow names, given by a person or a program. A workflow without them refuses
    the request."""
    idempotency_key: Name | None = None
    """Two requests with one key are one run."""
    traceparent: Traceparent | None = None
    """W3C Trace Context."""


@lru_cache(maxsize=512)
def _remembered_request(body: bytes) -> JobRequestV1:
    return JobRequestV1.decode(body)


def decode_request(body: bytes) -> JobRequestV1:
    """`JobRequestV1.decode` with a cache.

    A request is read when it arrives, planned a moment later, and run after that.

    Large requests are not cached, so that the cache stays small.
    """
    return _remembered_request(body) if len(body) <= REMEMBERED_BYTES else JobRequestV1.decode(body)


@lru_cache(maxsize=512)
def _cached_request(body: bytes) -> JobRequestV1:
    return JobRequestV1.model_validate_json(body, context=STORED)


def stored_request(body: bytes) -> JobRequestV1:
    """Return a stored request, which an older version may have accepted.

    That version may have had other rules for URLs.

    Today's rules may refuse its URL: call `canonical` before you fetch from it or give it secrets.
    """
    try:
        return decode_request(body)
    except InvalidMessage:
        return _cached_request(body)


class JobCancelV1(WireMessage):
    """The request to end all earlier runs of a change request."""

    VERSION: ClassVar[str] = "jobcancel.v1"

    schema_version: Literal["jobcancel.v1"] = "jobcancel.v1"
    """Equals the routing key, which says the version where this is absent."""
    cancel_id: Identifier
    """UUID of this message. Forges' ones derive it (UUIDv5) as requests do, so that the same delivery is the same message."""
    source: Annotated[Source, Field(strict=False)]
    repo_url: RepoUrl
    """As in the requests of the change request."""
    change_number: Count
    """Number of the pull or merge request."""
    submitted_at: Timestamp
    """When it was asked for: RFC 3339, UTC. What was submitted at this moment or later is left alone."""
    sender: Name | None = None
    """Login of who asked."""
    repo_full_name: Name | None = None
    """What the forge calls the repository: `owner/name`."""
    source_name: Name | None = None
    """Which configured hook received it."""
    delivery_id: Name | None = None
    """The forge's id of the delivery."""
    idempotency_key: Name | None = None
    """The same for every delivery of the one comment."""
    traceparent: Traceparent | None = None
    """W3C Trace Context."""


Number = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class BadTestV1(WirePart):
    """A test that failed, as the job's report has it.

    All of it is the job's own text.
    """

    name: Annotated[str, Field(max_length=MAX_TEST_NAME)]
    message: Annotated[str, Field(max_length=MAX_TEST_MESSAGE)] = ""
    file: Annotated[str, Field(max_length=MAX_TEST_NAME)] = ""
    """Relative to the repository where that is known."""
    line: Count | None = None


class TestCountsV1(WirePart):
    """What the test reports of a job say."""

    __test__: ClassVar[bool] = False

    passed: Number
    failed: Number
    errored: Number
    skipped: Number
    failures: Annotated[list[BadTestV1], Field(max_length=MAX_FAILED_TESTS)] = Field(default_factory=list)
    """The first of those that failed or errored."""


class ArtifactResultV1(WirePart):
    """An artifact that a job has handed out."""

    name: Name
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of its archive."""
    size: Count
    """Bytes of its archive."""
    files: Count


class JobResultV1(WirePart):
    """What a job that succeeded hands out; absent where it hands out nothing."""

    artifacts: Annotated[list[ArtifactResultV1], Field(max_length=100)] | None = None
    outputs: dict[Name, OutputText] | None = None
    """Texts by their names, up to 8 KiB together."""
    outputs_left_out: Count | None = None
    """How many outputs are not here, since all together are longer. The API has them."""


class JobStatusV1(WireMessage):
    """What became of a job, or of a whole run when `job_id` is absent."""

    VERSION: ClassVar[str] = "jobstatus.v1"

    schema_version: Literal["jobstatus.v1"] = "jobstatus.v1"
    """Equals the routing key, which says the version where this is absent."""
    status_id: Identifier
    """Stable for one transition: a repeated publish carries the same."""
    request_id: Identifier
    """The request that the run came from."""
    run_id: Identifier
    sequence: Count
    """Grows with every status of its context within the run: a reader keeps the highest and ignores older ones."""
    source: Annotated[Source, Field(strict=False)]
    repo_url: RepoUrl
    commit_sha: CommitSha
    context: Name
    """What the commit status is called: `solstice/JOB`, or `solstice` for the whole run."""
    state: Name
    """A job's state: `waiting`, `running`, `succeeded`, `failed`, `errored`, `cancelled`, `timed_out`, `skipped`, ..."""
    occurred_at: Timestamp
    """When the state was entered: RFC 3339, UTC."""
    revision: Count | None = None
    """Grows with every new description of a state that did not change: how many jobs are ahead of a waiting job."""
    reason: Name | None = None
    """Why, as one word of a closed list: `exit_code`, `lease_expired`, ..."""
    description: Text | None = None
    """A sentence for people."""
    job_id: Identifier | None = None
    job_name: Name | None = None
    """The job's name in the workflow."""
    attempt: Count | None = None
    """Which try at the job, from 1."""
    exit_code: Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None
    """Of the step that ended the job."""
    result: JobResultV1 | None = None
    """Of a job that succeeded."""
    target_url: Text | None = None
    """Where a person can look."""
    tests: TestCountsV1 | None = None
    """Of a job that has ended, and whose test reports were read."""
    source_name: Name | None = None
    repo_full_name: Name | None = None
    ref: Name | None = None
    change_number: Count | None = None
    delivery_id: Name | None = None
    traceparent: Traceparent | None = None


MESSAGES: Final[tuple[type[WireMessage], ...]] = (JobRequestV1, JobCancelV1, JobStatusV1)
"""Every message there is, for `schemas/` and its test."""


_REQUEST_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:solstice-ci:jobrequest.v1").bytes


def derive_request_id(*parts: str) -> str:
    """Return a stable request id from what makes the request unique: source name, delivery id, ....

    A UUIDv5 (RFC 9562, section 5.5) in the namespace of `jobrequest.v1`.
    """
    digest = bytearray(sha1(_REQUEST_NAMESPACE + "\x1f".join(parts).encode(), usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x50  # version 5
    digest[8] = digest[8] & 0x3F | 0x80  # RFC 9562's variant
    digits = digest.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
