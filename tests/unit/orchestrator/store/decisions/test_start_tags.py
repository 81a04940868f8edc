"""The start tag of each job that begins to wait for a slot."""

from msgspec.structs import replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.scheduling.order import QueueState
from solstice_orchestrator.store.decisions.start_tags import (
    QueueKey,
    RepositoryQueueKey,
    arrange,
    jobs_by_queue,
    still_running,
)
from solstice_orchestrator.store.records.changes import Job, RowChanges
from tests.builders import run_of_one_job

RUNNING_JOB = run_of_one_job(1).job
LINUX, ILLUMOS = QueueKey("linux", 2), QueueKey("illumos", 2)
OTTER, HERON = RepositoryQueueKey(LINUX, "river/otter"), RepositoryQueueKey(LINUX, "river/heron")


def waiting(job_id: str, repository: str = "river/otter", **changes: object) -> Job:
    return replace(
        RUNNING_JOB, **{"job_id": job_id, "repository": repository, "state": JobState.WAITING, **changes}
    )


def test_queues_are_locked_in_one_order_with_those_that_jobs_leave() -> None:
    changes = RowChanges(
        jobs=[waiting("a")],
        new_jobs=[waiting("b", "river/heron"), waiting("c"), waiting("d", runs_on="illumos")],
        arrivals=["c", "a", "b", "d"],
        given_up=[waiting("e", "delta/wader")],
    )
    assert list(jobs_by_queue(changes).items()) == [
        (RepositoryQueueKey(ILLUMOS, "river/otter"), ["d"]),
        (RepositoryQueueKey(LINUX, "delta/wader"), []),
        (HERON, ["b"]),
        (OTTER, ["c", "a"]),
    ]


def test_running_jobs_are_counted_without_those_that_just_ended() -> None:
    ended = [replace(RUNNING_JOB, job_id=job_id, state=JobState.SUCCEEDED) for job_id in ("a", "b")]
    goes_on = replace(RUNNING_JOB, job_id="x")
    never_ran = replace(RUNNING_JOB, job_id="y", state=JobState.CANCELLED)
    before = {
        **{each.job_id: replace(each, state=JobState.RUNNING) for each in (*ended, goes_on)},
        "y": replace(never_ran, state=JobState.WAITING),
    }
    changes = RowChanges(jobs=[*ended, goes_on, never_ran, waiting("unknown")], jobs_before=before)
    assert still_running({"river/otter": 5, "river/heron": 1}, changes) == {
        "river/otter": 3,
        "river/heron": 1,
    }


def test_arriving_jobs_take_turns_behind_those_of_their_repository() -> None:
    changes = RowChanges(
        jobs=[waiting("a"), waiting("z", start_tag=3)],
        new_jobs=[waiting("b", "river/heron"), waiting("c", "river/heron")],
        arrivals=["a", "b", "c"],
    )
    arranged = arrange(changes, {LINUX: QueueState(clock=10)}, {OTTER: 20})
    assert [(job.job_id, job.start_tag) for job in arranged.changes.jobs] == [("a", 20), ("z", 3)]
    assert [(job.job_id, job.start_tag) for job in arranged.changes.new_jobs] == [("b", 11), ("c", 12)]
    assert (arranged.clocks, arranged.next_tags) == ({LINUX: 10}, {OTTER: 21, HERON: 13})


def test_turns_that_were_given_up_are_free_for_the_repository() -> None:
    gone = [waiting("x", start_tag=19), waiting("y", start_tag=18)]
    arriving = RowChanges(jobs=[waiting("a")], arrivals=["a"], given_up=gone)
    arranged = arrange(arriving, {LINUX: QueueState(clock=10)}, {OTTER: 20})
    assert [job.start_tag for job in arranged.changes.jobs] == [18]
    assert arranged.next_tags == {OTTER: 19}
    leaving = arrange(RowChanges(given_up=gone), {}, {OTTER: 20})
    assert (leaving.clocks, leaving.next_tags) == ({}, {OTTER: 18})
    both = arrange(
        RowChanges(jobs=[waiting("a")], arrivals=["a"], given_up=[waiting("x", "delta/wader", start_tag=5)]),
        {LINUX: QueueState(clock=10)},
        {OTTER: 20},
    )
    assert [job.start_tag for job in both.changes.jobs] == [20]
    unknown = arrange(RowChanges(given_up=gone), {}, {})
    assert unknown.next_tags == {}
