"""Judges a load: what was lost, what ran twice, how long each stop took. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any, Final

from solstice_cli.load.load_plan import LoadRequest
from solstice_common.messages.states import FINAL, JobState
from solstice_common.values.times import parse_timestamp

Document = dict[str, Any]

RESCUE_REASONS: Final = frozenset({"lease_expired", "agent_lost"})
STOPS: Final = ("accepted", "stored", "planned", "started", "ended", "whole")
"""From due to accepted, from there to stored, and so on; `whole` is from due to ended."""
MAX_EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that was sent."""

    request: LoadRequest
    due_at: float
    """When it was to be sent, in seconds since the epoch."""
    answered_at: float
    refusal: str | None = None
    """Why it was not accepted; None: it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the orchestrator shows of a request."""

    runs: Sequence[Document]
    """More than one is a duplicate."""
    jobs: Sequence[Document] = ()
    """Of the first run."""
    attempts: Mapping[str, Sequence[Document]] = field(default_factory=dict)
    """By the id of the job, where there was more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """How long one stop of the line took, in seconds (nearest rank)."""

    stop: str
    count: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What became of a load."""

    requests: int
    unsent: int
    """Not sent, or not answered, when the time was over."""
    accepted: int
    refusals: Mapping[str, int]
    """Requests that were not accepted, by the reason."""
    ended: int
    states: Mapping[str, int]
    """Runs by their state."""
    lost: int
    """Accepted, and without a run."""
    unfinished: int
    """With a run that has not ended."""
    duplicated: int
    """Runs beyond one for each request, and jobs that succeeded twice."""
    wrong: int
    """Runs that ended in another state than their kind has to."""
    retried: int
    """Attempts after a failure of the job itself."""
    rescued: int
    """Attempts after a worker or orchestrator was lost."""
    repeated: int
    """Attempts after another failure of the world."""
    send_seconds: float
    """From the first due to the last answer."""
    run_seconds: float
    """From the first due to the last end."""
    stops: Sequence[StopTimes]
    examples: Sequence[str]
    """Request ids or run ids of what is wrong, with what is wrong with them."""

    @property
    def good(self) -> bool:
        """Whether all that was asked for was accepted and ended once, as it has to."""
        bad = (self.unsent, self.lost, self.unfinished, self.duplicated, self.wrong)
        return not (any(bad) or self.refusals)


def judged(sent: Sequence[Sent], seen: Mapping[int, Seen], *, requests: int) -> LoadReport:
    """Return the report over so many requests, of which these were sent.

    `seen` is by the number of the request.
    """
    accepted = [each for each in sent if each.refusal is None]
    pairs = [(each, seen[each.request.number]) for each in accepted if each.request.number in seen]
    runs = [(each, found.runs[0]) for each, found in pairs]
    ended = [(each, run) for each, run in runs if run["state"] in FINAL]
    wrong = [(each, run) for each, run in ended if run["state"] != each.request.kind.expected]
    extra_runs = sum(len(found.runs) - 1 for _, found in pairs)
    attempts = [list(tries) for _, found in pairs for tries in found.attempts.values()]
    twice = sum(max(0, _successes(tries) - 1) for tries in attempts)
    causes = Counter(_cause(attempt) for tries in attempts for attempt in tries[:-1])
    first_due = min((each.due_at for each in sent), default=0.0)
    lost = [each for each in accepted if each.request.number not in seen]
    return LoadReport(
        requests=requests,
        unsent=requests - len(sent),
        accepted=len(accepted),
        refusals=dict(Counter(each.refusal for each in sent if each.refusal is not None)),
        ended=len(ended),
        states=dict(Counter(run["state"] for _, run in runs)),
        lost=len(lost),
        unfinished=len(runs) - len(ended),
        duplicated=extra_runs + twice,
        wrong=len(wrong),
        retried=causes["retried"],
        rescued=causes["rescued"],
        repeated=causes["repeated"],
        send_seconds=max((each.answered_at for each in sent), default=first_due) - first_due,
        run_seconds=max((_moment(run, "finished_at") or first_due for _, run in ended), default=first_due)
        - first_due,
        stops=list(_stops(pairs)),
        examples=[
            *(
                f"request {each.request.number} ({each.request.kind}) has no run"
                for each in lost[:MAX_EXAMPLES]
            ),
            *(
                f"run {run['run_id']} ({each.request.kind}) ended as {run['state']}: {run.get('detail') or '-'}"
                for each, run in wrong[:MAX_EXAMPLES]
            ),
            *(
                f"request {each.request.number} became {len(found.runs)} runs: "
                + ", ".join(run["run_id"] for run in found.runs)
                for each, found in pairs
                if len(found.runs) > 1
            ),
        ][: 2 * MAX_EXAMPLES],
    )


def _stops(pairs: Sequence[tuple[Sent, Seen]]) -> Iterable[StopTimes]:
    times: dict[str, list[float]] = {stop: [] for stop in STOPS}
    for sent, found in pairs:
        moments = _moments(sent, found)
        for stop, (before, after) in zip(STOPS, pairwise(moments), strict=False):
            if before is not None and after is not None:
                # The clocks of two machines differ: nothing is shown as shorter than no time.
                times[stop].append(max(0.0, after - before))
        if moments[-1] is not None:
            times["whole"].append(max(0.0, moments[-1] - sent.due_at))
    for stop, seconds in times.items():
        if seconds:
            ordered = sorted(seconds)
            yield StopTimes(
                stop=stop,
                count=len(ordered),
                p50=_percentile(ordered, 0.5),
                p95=_percentile(ordered, 0.95),
                p99=_percentile(ordered, 0.99),
                longest=ordered[-1],
            )


def _moments(sent: Sent, found: Seen) -> list[float | None]:
    """When it was due, accepted, stored, planned, started, and when it ended."""
    run = found.runs[0]
    job: Document = found.jobs[0] if found.jobs else {}
    first = [_moment(attempt, "started_at") for attempt in found.attempts.get(job.get("job_id", ""), ())[:1]]
    return [
        sent.due_at,
        sent.answered_at,
        _moment(run, "created_at"),
        _moment(job, "created_at"),
        *(first or [_moment(job, "started_at")]),
        _moment(run, "finished_at"),
    ]


def _moment(document: Document, name: str) -> float | None:
    text = document.get(name)
    return None if text is None else parse_timestamp(text).timestamp()


def _cause(attempt: Document) -> str:
    if attempt["reason"] in RESCUE_REASONS:
        return "rescued"
    return "retried" if attempt["state"] in {JobState.FAILED, JobState.TIMED_OUT} else "repeated"


def _successes(attempts: Sequence[Document]) -> int:
    return sum(attempt["state"] == JobState.SUCCEEDED for attempt in attempts)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share does not exceed (nearest rank)."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
