"""The JSON of the API as models, for checks and for the OpenAPI document."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from solstice_common.messages import Priority
from solstice_common.messages.fields import (
    MAX_INTEGER,
    CommitSha,
    Identifier,
    Inputs,
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
    """The URL that git fetches from, without credentials; `git@host:path` is written `ssh://git@host/path`."""
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
    inputs: Inputs | None = None
    """Values of the manual inputs that the workflow names, by name."""
    priority: Priority | None = None
    """Priority class."""
    not_before: Moment | None = None
    """The earliest start, at most 366 days ahead: RFC 3339 with any offset."""
    delay_seconds: Annotated[int, Field(ge=0, le=int(MAX_DELAY.total_seconds()))] | None = None
    """The delay of its start in seconds; not together with `not_before`."""

    @model_validator(mode="after")
    def _starts_once(self) -> Self:
        if self.not_before is not None and self.delay_seconds is not None:
            raise ValueError("not_before and delay_seconds: give one of them")
        return self


class JobTaken(_Document):
    """The job is stored, and is published as soon as the broker takes it."""

    request_id: Identifier
    """The id of the request; the orchestrator shows its run at `/api/v1/requests/{request_id}`."""
    delivery_id: Identifier
    """The id of the delivery; `/api/v1/deliveries/{delivery_id}` shows its decision."""


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
    """The sender's name of the event."""
    received_at: Timestamp
    repository: str | None
    decision: Decision
    reason: str
    """The reason, as one word."""
    detail: str
    """A sentence for people; may be empty."""
    request_ids: list[Identifier]
    """The requests that it made; for a duplicate, those of the delivery that it repeats."""
    repeats: Number | None
    """Number of the delivery that it is a copy of."""
    published: bool | None
    """Whether the broker has the request; null for a delivery without a request of its own."""
    attempts: Annotated[int, Field(ge=0)]
    """How often the relay tried to publish it."""
    last_failure: str | None
    """The broker's answer to the last failed try."""


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
    """The `jobrequest.v1` or `jobcancel.v1` that it made."""
    copies: list[Delivery]
    """Later deliveries that repeat it, oldest first; at most a few."""
    replays: list[Delivery]
    """Replays that a person made of it, oldest first; at most a few."""


class Problem(_Document):
    """The reason of a refusal."""

    error: str
    """A sentence for people: what is wrong and what to do."""
    reason: str
    """One word for programs."""


def fields_of(entry: DeliveryEntry) -> dict[str, Any]:
    """Return the fields of a `Delivery`."""
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
