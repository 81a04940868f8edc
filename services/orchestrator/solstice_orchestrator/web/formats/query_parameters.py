"""The query parameters of API v1, for parsing and for its OpenAPI document."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.messages import Priority
from solstice_common.messages.fields import Label
from solstice_common.messages.states import JobState, RunState
from solstice_common.values.times import age_seconds
from solstice_common.values.validation import in_words
from solstice_orchestrator.store.records.schedule_rows import full_ref
from solstice_orchestrator.web.formats.refusals import HttpRefusal

QueryT = TypeVar("QueryT", bound="ParsedQuery")

MAX_LIMIT: Final = 200
MAX_CHUNKS: Final = 1000
LARGEST: Final = 2**31 - 1
"""The largest attempt or sequence, which the stores keep in four bytes."""

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="The most entries to list.")]
After = Annotated[
    str | None,
    Field(description="Go on behind a page: its `next`, with the same filters.", max_length=200),
]


class ParsedQuery(BaseModel):
    """Query parameters; one with an empty value counts as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoParameters(ParsedQuery):
    """No parameters at all."""


class ListQuery(ParsedQuery):
    """Parameters of all lists."""

    repository: Annotated[str | None, Field(description="Only of this one: OWNER/NAME or its URL.")] = None
    branch: Annotated[
        str | None, Field(description="Only of this branch; of another ref, by its full name: refs/tags/v1.")
    ] = None

    @property
    def ref(self) -> str | None:
        """The full ref that `branch` names."""
        return None if self.branch is None else full_ref(self.branch)


class SchedulesQuery(ListQuery):
    """Which schedules to list."""

    limit: Limit = 50
    after: After = None


class WatermarksQuery(ListQuery):
    """Which watermarks to list."""

    behind: Annotated[
        Literal["0", "1"] | None, Field(description="1: only of refs that have a pending push behind it.")
    ] = None
    limit: Limit = 50
    after: Annotated[
        str | None,
        # It holds the names of a repository and a ref, and an address has at most 8,192 bytes.
        Field(
            description="Go on behind a page: its `next`, with the same filters.",
            max_length=4000,
            pattern="^[A-Za-z0-9_=-]+$",
        ),
    ] = None


class CachesQuery(ParsedQuery):
    """Which caches to list."""

    repository: Annotated[str | None, Field(description="Only of this one: OWNER/NAME or its URL.")] = None
    name: Annotated[str | None, Field(description="Only with this name in the workflow file.")] = None
    scope: Annotated[str | None, Field(description="Only of these runs: `default branch`, `branch fix`.")] = (
        None
    )
    trusted: Annotated[
        Literal["0", "1"] | None, Field(description="0: only what untrusted runs saved; 1: only the rest.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=10_000, description="The most entries to list.")] = 10_000


class SchedulesPageQuery(ParsedQuery):
    """Parameters of the page of schedules."""

    after: Annotated[str | None, Field(max_length=200)] = None


class NextQuery(ParsedQuery):
    """The number of future ticks."""

    count: Annotated[int, Field(ge=1, le=100, description="So many ticks.")] = 10


class RepositoryTestsQuery(ParsedQuery):
    """The tests of which repository."""

    repository: Annotated[str, Field(description="OWNER/NAME or its URL.", min_length=1)]
    branch: Annotated[
        str | None, Field(description="Only of this branch; of another ref, by its full name: refs/tags/v1.")
    ] = None
    limit: Limit = 50

    @property
    def ref(self) -> str | None:
        """The full ref that `branch` names."""
        return None if self.branch is None else full_ref(self.branch)


class OneTestQuery(RepositoryTestsQuery):
    """One test of a repository."""

    name: Annotated[str, Field(description="Its full name, or the end of it.", min_length=1, max_length=2000)]


class FilteredListQuery(ListQuery):
    """Common parameters of the lists of runs and jobs."""

    label: Annotated[str | None, Field(description="Only jobs, or runs with a job, that run on this.")] = None
    priority: Annotated[
        Priority | None, Field(description="Only jobs, or runs with a job (on that label), of this class.")
    ] = None
    limit: Limit = 50
    after: After = None


class DeadLettersQuery(ParsedQuery):
    """Which dead letters to list."""

    queue: Annotated[
        str | None, Field(description="Only of this one: requests, cancels, statuses, or its full name.")
    ] = None
    reason: Annotated[str | None, Field(description="Only with this reason.")] = None
    repository: Annotated[
        str | None, Field(description="Only of this one: OWNER/NAME, a pattern of it, or its URL.")
    ] = None
    priority: Annotated[Priority | None, Field(description="Only of this class.")] = None
    since_seconds: Annotated[
        int | None, Field(ge=1, le=LARGEST, description="Only what died within so many seconds.")
    ] = None
    where: Annotated[str | None, Field(description="Only with this header: HEADER=VALUE.")] = None
    limit: Limit = 50
    after: Annotated[
        str | None,
        Field(description="Go on behind a page: its `next`, with the same filters.", max_length=500),
    ] = None

    def filters(self) -> Mapping[str, object]:
        """Return every filter by name."""
        return self.model_dump(exclude={"limit", "after"})


class DeadLetterPageQuery(ParsedQuery):
    """Which dead letters the pages show, replay or drop."""

    queue: Annotated[str | None, Field(max_length=200)] = None
    reason: Annotated[str | None, Field(max_length=200)] = None
    repository: Annotated[str | None, Field(max_length=500)] = None
    priority: Priority | None = None
    since: Annotated[str | None, Field(pattern=r"^[1-9][0-9]{0,5}[smhd]$")] = None
    """Only dead letters that are younger than this: `12h`."""
    id: Annotated[str | None, Field(pattern=r"^[0-9a-f]{4,16}$")] = None
    after: Annotated[str | None, Field(max_length=100)] = None
    """The cursor of the last one that was shown."""

    @property
    def queues(self) -> list[str]:
        """The queue's name in a list; an empty one for all queues."""
        return [self.queue] if self.queue else []

    def filters(self) -> dict[str, str]:
        """Return every filter by name, empty where it matches everything."""
        values = self.model_dump(exclude={"after"}, exclude_none=True)
        return {name: str(values.get(name, "")) for name in type(self).model_fields if name != "after"}

    def selection(self, now: datetime) -> Selection:
        """Return the filters as a Selection."""
        return Selection(
            ids=(self.id,) if self.id else (),
            reason=self.reason,
            repository=self.repository.strip() if self.repository else None,
            priority=self.priority,
            since=now - timedelta(seconds=age_seconds(self.since)) if self.since else None,
        )


class RunsQuery(FilteredListQuery):
    """Which runs to list."""

    state: Annotated[RunState | None, Field(description="Only in this state.")] = None


class RunCountsQuery(ListQuery):
    """Which runs to count."""

    since_seconds: Annotated[
        int | None, Field(ge=1, le=LARGEST, description="Only those requested within so many seconds.")
    ] = None


class JobsQuery(FilteredListQuery):
    """Which jobs to list."""

    run_id: Annotated[str | None, Field(description="Only of this run, in the order of its workflow.")] = None
    state: Annotated[JobState | None, Field(description="Only in this state.")] = None


class PageQuery(RunsQuery):
    """Parameters of the page of runs; its `after` is a run's id."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 30


class RerunQuery(ParsedQuery):
    """The scope of a rerun."""

    jobs: Annotated[
        Literal["all", "failed"],
        Field(description="failed: what did not succeed, and what needs it; all else is left as it was."),
    ] = "all"


class PriorityQuery(ParsedQuery):
    """The priority class of a job."""

    priority: Annotated[Priority, Field(description="Its new class.")]


class AttemptQuery(ParsedQuery):
    """The attempt of a job."""

    attempt: Annotated[
        int | None, Field(ge=1, le=LARGEST, description="Of this attempt; without it, of the newest.")
    ] = None


class ServiceQuery(AttemptQuery):
    """The log of a job, or of a service of it."""

    service: Annotated[
        str | None, Field(description="Of this service; without it, of the job itself.", max_length=63)
    ] = None


class LinePageQuery(ServiceQuery):
    """Which part of which log the page of a job shows."""

    line: Annotated[int | None, Field(ge=1, le=LARGEST)] = None


class LogQuery(ServiceQuery):
    """Which part of a log."""

    after: Annotated[int, Field(ge=0, le=LARGEST, description="Only chunks with a higher sequence.")] = 0
    limit: Annotated[
        int, Field(ge=1, le=MAX_CHUNKS, description="At most so many chunks; fewer when they are large.")
    ] = 16


class PlainLogQuery(ServiceQuery):
    """The form of a whole log."""

    plain: Annotated[
        Literal["0", "1"] | None, Field(description="1: without what steers terminals, and without `Range`.")
    ] = None


class StreamQuery(AttemptQuery):
    """Where a stream of a log begins."""

    after: Annotated[str | None, Field(description="Behind this place: ATTEMPT.SEQUENCE, or SEQUENCE.")] = (
        None
    )


class LogStreamQuery(StreamQuery, ServiceQuery):
    """Where a stream of a log begins, and whose log it is."""


class ScaleQuery(ParsedQuery):
    """The label, and the target time of the demand."""

    label: Annotated[Label | None, Field(description="Only of this label, which may be unknown.")] = None
    target_seconds: Annotated[
        int | None,
        Field(ge=1, le=86_400, description="In how many seconds the work is to be done; 300 by default."),
    ] = None


class OrderQuery(ParsedQuery):
    """Options of an order to a worker."""

    seconds: Annotated[
        int | None, Field(ge=1, le=2_592_000, description="How long a quarantine lasts; an hour by default.")
    ] = None


def parse_query(request: Request, model: type[QueryT], *, others: bool = False) -> QueryT:
    """Parse a request's query; raises HttpRefusal for unknown, wrong or repeated parameters.

    With `others`, unknown ones are ignored.
    """
    pairs = [(name, value) for name, value in request.query_params.multi_items() if value]
    known = model.model_fields
    for name, times in Counter(name for name, _ in pairs).items():
        if name in known and times > 1:
            raise _wrong(f"{name} is there {times} times")
        if name not in known and not others:
            raise _wrong(f"{name[:100]!r} is not known here; known are {', '.join(known) or 'none'}")
    try:
        return model.model_validate_strings({name: value for name, value in pairs if name in known})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise _wrong(f"{problem['loc'][0]}: {in_words(problem)}") from None


def _wrong(detail: str) -> HttpRefusal:
    return HttpRefusal(400, "invalid_parameter", f"{detail}.")
