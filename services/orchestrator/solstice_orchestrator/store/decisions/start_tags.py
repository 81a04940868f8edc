"""Gives each job that starts to wait its start tag in the queue. Pure.

`scheduling/order.py` decides the start tags; the store keeps the numbers that they depend on.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from solstice_common.messages.states import JobState
from solstice_orchestrator.scheduling.order import QueueState, next_tag_without, queue_entry, start_tags
from solstice_orchestrator.store.records.changes import Job, RowChanges


class QueueKey(NamedTuple):
    """Jobs that wait for one label in one priority class."""

    label: str
    priority: int


class RepositoryQueueKey(NamedTuple):
    """The jobs of one repository in a queue."""

    queue_key: QueueKey
    repository: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedChanges:
    """The changes with every job's start tag, and the numbers that the store keeps."""

    changes: RowChanges
    clocks: Mapping[QueueKey, int]
    next_tags: Mapping[RepositoryQueueKey, int]


def jobs_by_queue(changes: RowChanges) -> Mapping[RepositoryQueueKey, Sequence[str]]:
    """Return the queues that jobs join or leave, with the ids of joining jobs.

    They are sorted, so that all transactions take locks in one order.
    """
    by_queue: dict[RepositoryQueueKey, list[str]] = {
        repository_queue: [] for repository_queue in _left(changes)
    }
    jobs = {job.job_id: job for job in _all(changes)}
    for job_id in changes.arrivals:
        job = jobs[job_id]
        by_queue.setdefault(
            RepositoryQueueKey(QueueKey(job.runs_on, job.priority), job.repository), []
        ).append(job_id)
    return dict(sorted(by_queue.items()))


def still_running(running: Mapping[str, int], changes: RowChanges) -> Mapping[str, int]:
    """Count the running jobs of each repository after the changes, without new starts.

    `running` counts them before the changes.
    """
    ended = Counter(
        job.repository
        for job in changes.jobs
        if job.state is not JobState.RUNNING
        and (before := changes.jobs_before.get(job.job_id)) is not None
        and before.state is JobState.RUNNING
    )
    return {repository: jobs - ended[repository] for repository, jobs in running.items()}


def arrange(
    changes: RowChanges, queues: Mapping[QueueKey, QueueState], next_tags: Mapping[RepositoryQueueKey, int]
) -> ArrangedChanges:
    """Give every arriving job its start tag.

    `next_tags` has the repositories that already have one.
    """
    entries = {queue_key: queue_entry(queue) for queue_key, queue in queues.items()}
    tag_of: dict[str, int] = {}
    following: dict[RepositoryQueueKey, int] = {}
    left = _left(changes)
    for repository_queue, job_ids in jobs_by_queue(changes).items():
        gone = left.get(repository_queue, ())
        known = next_tags.get(repository_queue)
        if known is not None and gone:
            known = next_tag_without(known, gone)
            following[repository_queue] = known
        if not job_ids:
            continue
        new_tags = start_tags(entries[repository_queue.queue_key], known, len(job_ids))
        tag_of.update(zip(job_ids, new_tags, strict=True))
        following[repository_queue] = new_tags.stop
    return ArrangedChanges(
        changes=replace(
            changes, jobs=_placed(changes.jobs, tag_of), new_jobs=_placed(changes.new_jobs, tag_of)
        ),
        clocks={queue_key: entry.clock for queue_key, entry in entries.items()},
        next_tags=following,
    )


def _left(changes: RowChanges) -> Mapping[RepositoryQueueKey, Sequence[int]]:
    """Return the start tags that were given up."""
    tags_left: dict[RepositoryQueueKey, list[int]] = {}
    for job in changes.given_up:
        tags_left.setdefault(
            RepositoryQueueKey(QueueKey(job.runs_on, job.priority), job.repository), []
        ).append(job.start_tag)
    return tags_left


def _all(changes: RowChanges) -> Iterable[Job]:
    yield from changes.jobs
    yield from changes.new_jobs


def _placed(jobs: Sequence[Job], tag_of: Mapping[str, int]) -> Sequence[Job]:
    return [
        structs.replace(job, start_tag=tag_of[job.job_id]) if job.job_id in tag_of else job for job in jobs
    ]
