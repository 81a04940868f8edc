"""The JSON of the API as models, for checks and for the OpenAPI document."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from solstice_common.messages import Priority
from solstice_common.messages.fields import (
    MAX_INTEGER,
    CommitSha,
    Identifier,
    Label,
    Name,
    RepoUrl,
    Timestamp,
    WorkflowPath,
)
from solstice_common.values.delays import MAX_DELAY, MOMENT_PATTERN, parse_moment
from solstice_common.values.times import format_seconds, format_timestamp
from solstice_forge.inbox.log import DeliveryEntry
from solstice_forge.inbox.protocol import Decision

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

Number = Annotated[int, Field(ge=1, le=MAX_INTEGER)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _in_utc(text: str) -> str:
    return format_timestamp(parse_moment(text))


Moment = Annotated[
    str,
    AfterValidator(_in_utc),
    Field(json_schema_extra={"format": "date-time", "pattern": MOMENT_PATTERN}),
]
"""RFC 3339 with any offset, stored in UTC."""


class JobInput(_Document):
    """One commit to build."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"not_before": {"type": "string"}, "delay_seconds": {"type": "integer"}},
                "required": ["not_before", "delay_seconds"],
            }
        }
    )

    repo_url: RepoUrl
    """What git fetches from. No credentials; `git@host:path` is written `ssh://git@host/path`."""
    commit_sha: CommitSha
    """Full commit id: 40 hexadecimal digits, or 64 in a SHA-256 repository."""
    ref: Name | None = None
    """Branch or tag, to show beside the run: `refs/heads/main`."""
    repo_full_name: Name | None = None
    """What people call the repository: `owner/name`; by default the path of `repo_url`."""
    runs_on: Label | None = None
    """Label for jobs whose workflow names none."""
    workflow_path: WorkflowPath | None = None
    """Workflow file inside the repository, instead of `.solstice/workflow.kdl`."""
    workflow_job_id: Name | None = None
    """Only this job of the workflow, and what it needs."""
    priority: Priority | None = None
    """Priority class."""
    not_before: Moment | None = None
    """When it is to start, at most 366 days ahead: RFC 3339 with any offset."""
    delay_seconds: Annotated[int, Field(ge=0, le=int(MAX_DELAY.total_seconds()))] | None = None
    """In how many seconds it is to start; not beside `not_before`."""

    @model_validator(mode="after")
    def _starts_once(self) -> Self:
        if self.not_before is not None and self.delay_seconds is not None:
            raise ValueError("not_before and delay_seconds: give one of them")
        return self


class JobTaken(_Document):
    """The job is stored, and is published as soon as the broker takes it."""

    request_id: Identifier
    """Of the request; the orchestrator's `/api/v1/requests/{request_id}` is its run."""
    delivery_id: Identifier
    """Of the delivery; `/api/v1/deliveries/{delivery_id}` is what became of it here."""


class DeliveriesQuery(_Document):
    """Which deliveries to list."""

    source: Annotated[Name | None, Field(description="Only of this source.")] = None
    decision: Annotated[Decision | None, Field(description="Only those with this decision.")] = None
    reason: Annotated[Name | None, Field(description="Only those with this reason.")] = None
    repository: Annotated[Name | None, Field(description="Only of this repository: `owner/name`.")] = None
    since: Annotated[Timestamp | None, Field(description="Only those received then or later.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="The most entries to list.")] = DEFAULT_LIMIT
    after: Annotated[Number | None, Field(description="Go on behind a page: its `next`.")] = None


class Delivery(_Document):
    """One delivery, and what was decided about it."""

    number: Number
    """Its number here; later ones have higher numbers."""
    source: str
    """The source that it came by; `api` for `POST /api/v1/jobs`."""
    delivery_id: str
    event: str
    """What the sender calls it."""
    received_at: Timestamp
    repository: str | None
    decision: Decision
    reason: str
    """Why, as one word."""
    detail: str
    """A sentence for people; may be empty."""
    request_ids: list[Identifier]
    """What it asked for; for a duplicate, what the delivery asked for that it repeats."""
    repeats: Number | None
    """Number of the delivery that it is a copy of."""
    published: bool | None
    """Whether the request is with the broker; null for what asks for nothing by itself."""
    attempts: Annotated[int, Field(ge=0)]
    """How often it was offered to the broker."""
    last_failure: str | None
    """The broker's answer when it last did not take it."""


class Deliveries(_Document):
    """One page of deliveries, newest first."""

    deliveries: list[Delivery]
    next: Number | None
    """`after` of the page with older ones; null at the end. A page may be short, even empty, and have a next one."""


class WholeDelivery(Delivery):
    """One delivery with everything stored about it, except for its body."""

    headers: dict[str, str]
    """Without signatures and tokens."""
    body_bytes: Annotated[int, Field(ge=0)]
    """Length of the stored body."""
    request: dict[str, Any] | None
    """The `jobrequest.v1` or `jobcancel.v1` that it asked for."""
    copies: list[Delivery]
    """Those that came later and repeat it, oldest first; not more than a few."""
    replays: list[Delivery]
    """Those that a person made of it, oldest first; not more than a few."""


class Problem(_Document):
    """Why not."""

    error: str
    """A sentence for people: what is wrong and what to do."""
    reason: str
    """One word for programs."""


def fields_of(entry: DeliveryEntry) -> dict[str, Any]:
    """The fields of a `Delivery`."""
    return {
        "number": entry.row_id,
        "source": entry.source_name,
        "delivery_id": entry.delivery_id,
        "event": entry.event_name,
        "received_at": format_seconds(entry.received_at),
        "repository": entry.repo_full_name,
        "decision": entry.decision,
        "reason": entry.reason,
        "detail": entry.detail,
        "request_ids": list(entry.request_ids),
        "repeats": entry.repeats,
        "published": entry.published,
        "attempts": entry.attempts,
        "last_failure": entry.last_failure,
    }
