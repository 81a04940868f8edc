"""The input for a schedule, and for a change of one."""

import re
from dataclasses import fields
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from solstice_common.messages import Priority
from solstice_common.messages.fields import Label, Name, RepoUrl, WorkflowPath
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.values.repo_urls import full_name_of
from solstice_orchestrator.git.fetching import plain_ref
from solstice_orchestrator.git.heads import Branch
from solstice_orchestrator.schedules.cron import MAX_LENGTH, timing
from solstice_orchestrator.store.records.schedule_rows import full_ref
from solstice_orchestrator.store.schedule_store import ScheduleChanges, ScheduleSpec

RESERVED: Final = frozenset({"events"})
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _name(name: str) -> str:
    if name in RESERVED or _ID.fullmatch(name):
        raise ValueError("must not be 'events', nor look like an id")
    return name


def _branch(branch: str) -> str:
    if plain_ref(Branch(repo_url="", ref=full_ref(branch))) is None:
        raise ValueError(
            "must be the name of a branch, or a full one like refs/tags/v1, of ASCII letters, digits and ._/@-"
        )
    return branch


def _cron(cron: str) -> str:
    return timing(cron, "UTC").text


def _timezone(zone: str) -> str:
    timing("@daily", zone)
    return zone


ScheduleName = Annotated[Label, AfterValidator(_name)]
BranchName = Annotated[Name, AfterValidator(_branch)]
CronText = Annotated[str, Field(min_length=1, max_length=MAX_LENGTH), AfterValidator(_cron)]
ZoneName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_timezone)]


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ScheduleInput(_Sent):
    """A schedule: a branch to build regularly."""

    name: ScheduleName
    """Its name, unique among the schedules."""
    repo_url: RepoUrl
    """The URL that git fetches from, without credentials; `git@host:path` is written `ssh://git@host/path`."""
    branch: BranchName
    """Without `refs/heads/`; of another ref, its full name. Each tick builds its commit of that moment."""
    cron: CronText
    """Minute, hour, day of month, month and day of week; or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`."""
    timezone: ZoneName = "UTC"
    """An IANA name: `Europe/Berlin`."""
    repo_full_name: Name | None = None
    """What people call the repository: `owner/name`; by default the path of `repo_url`."""
    missed: Missed = Missed.ONCE
    """For ticks during which no orchestrator ran: `once`, one run makes up for all; `skip`, they are only
    recorded.
    """
    overlap: Overlap = Overlap.QUEUE
    """While the last run has not ended: `queue`, start one more; `skip`, only record the tick."""
    workflow_path: WorkflowPath | None = None
    """Workflow file inside the repository, instead of `.solstice/workflow.kdl`."""
    workflow_job_id: Name | None = None
    """Only this job of the workflow, and what it needs."""
    runs_on: Label | None = None
    """Label for jobs whose workflow names none."""
    priority: Priority | None = None
    """Priority class."""

    def spec(self) -> ScheduleSpec:
        """Convert it for the store."""
        values = {field.name: getattr(self, field.name) for field in fields(ScheduleSpec)}
        return ScheduleSpec(
            **{**values, "repo_full_name": self.repo_full_name or full_name_of(self.repo_url)}
        )


def _or_as_it_is() -> Any:
    """What is left out stays; null is no value for it."""
    return Field(default=None)


class ScheduleEdit(_Sent):
    """The fields of a schedule to change.

    What is left out stays as it is, null takes away what may be absent.
    """

    name: ScheduleName = _or_as_it_is()
    repo_url: RepoUrl = _or_as_it_is()
    branch: BranchName = _or_as_it_is()
    cron: CronText = _or_as_it_is()
    timezone: ZoneName = _or_as_it_is()
    repo_full_name: Name | None = None
    missed: Missed = _or_as_it_is()
    overlap: Overlap = _or_as_it_is()
    workflow_path: WorkflowPath | None = None
    workflow_job_id: Name | None = None
    runs_on: Label | None = None
    priority: Priority | None = None

    def changes(self) -> ScheduleChanges:
        """Convert it for the store."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if "repo_url" in values and values.get("repo_full_name") is None:
            values["repo_full_name"] = full_name_of(self.repo_url)
        return cast("ScheduleChanges", values)
