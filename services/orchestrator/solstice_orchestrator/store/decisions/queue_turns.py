"""Jobs that begin to wait are given their turns: `scheduling/order.py` says which, the store keeps what that depends on. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from solstice_common.messages.states import JobState
from solstice_orchestrator.scheduling.order import Queue, enter, next_turn_without, turns
from solstice_orchestrator.store.records.changes import Changes, Job


class Line(NamedTuple):
    """Jobs that wait for one label in one priority class."""

    label: str
    priority: int


class Place(NamedTuple):
    """A repository in a line."""

    line: Line
    repository: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """The changes with every turn in them, and what is to be kept for the next who come."""

    changes: Changes
    clocks: Mapping[Line, int]
    next_turns: Mapping[Place, int]


def places(changes: Changes) -> Mapping[Place, Sequence[str]]:
    """Where the arrivals (ids of jobs) are to be placed, and where others left; sorted, so that locks are taken in one order."""
    found: dict[Place, list[str]] = {place: [] for place in _left(changes)}
    jobs = {job.job_id: job for job in _all(changes)}
    for job_id in changes.arrivals:
        job = jobs[job_id]
        found.setdefault(Place(Line(job.runs_on, job.priority), job.repository), []).append(job_id)
    return dict(sorted(found.items()))


def still_running(running: Mapping[str, int], changes: Changes) -> Mapping[str, int]:
    """What runs of each repository once the changes are written, if it is `running` now; what they start apart."""
    ended = Counter(
        job.repository
        for job in changes.jobs
        if job.state is not JobState.RUNNING
        and (before := changes.jobs_before.get(job.job_id)) is not None
        and before.state is JobState.RUNNING
    )
    return {repository: jobs - ended[repository] for repository, jobs in running.items()}


def arrange(changes: Changes, queues: Mapping[Line, Queue], next_turns: Mapping[Place, int]) -> Arranged:
    """Give every arrival its turn. `next_turns` of repositories that have one."""
    entries = {line: enter(queue) for line, queue in queues.items()}
    given: dict[str, int] = {}
    following: dict[Place, int] = {}
    left = _left(changes)
    for place, job_ids in places(changes).items():
        gone = left.get(place, ())
        known = next_turns.get(place)
        if known is not None and gone:
            known = next_turn_without(known, gone)
            following[place] = known
        if not job_ids:
            continue
        taken = turns(entries[place.line], known, len(job_ids))
        given.update(zip(job_ids, taken, strict=True))
        following[place] = taken.stop
    return Arranged(
        changes=replace(
            changes, jobs=_placed(changes.jobs, given), new_jobs=_placed(changes.new_jobs, given)
        ),
        clocks={line: entry.clock for line, entry in entries.items()},
        next_turns=following,
    )


def _left(changes: Changes) -> Mapping[Place, Sequence[int]]:
    """The turns that nobody will take."""
    found: dict[Place, list[int]] = {}
    for job in changes.given_up:
        found.setdefault(Place(Line(job.runs_on, job.priority), job.repository), []).append(job.turn)
    return found


def _all(changes: Changes) -> Iterable[Job]:
    yield from changes.jobs
    yield from changes.new_jobs


def _placed(jobs: Sequence[Job], given: Mapping[str, int]) -> Sequence[Job]:
    return [structs.replace(job, turn=given[job.job_id]) if job.job_id in given else job for job in jobs]
