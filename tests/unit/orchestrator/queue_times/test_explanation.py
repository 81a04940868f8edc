"""The explanation why a job waits, and its expected start."""

from dataclasses import replace

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.forecast import Forecast, Sample
from solstice_orchestrator.queue_times.waits import (
    COUNTED,
    Holder,
    OwnerStartsOfHour,
    UnmetNeed,
    WaitExplanation,
    WaitFacts,
    WaitReason,
)
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.quotas import OwnerStarts
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, Rate, Throttle
from solstice_orchestrator.scheduling.workers import Presence, WorkerJob, WorkerState, WorkerView

NOW = 1000.0
RECENT = tuple(Sample(repository="acme/app", seconds=60.0) for _ in range(5))


def worker(name: str = "moor", jobs: int = 0, **changes: object) -> WorkerView:
    values: dict[str, object] = {
        "worker_id": name,
        "name": name,
        "host": name,
        "version": "1",
        "slots": {"linux": 2},
        "limit": 2,
        "presence": Presence.ALIVE,
        "state": WorkerState.ACTIVE,
        "quarantined_until": None,
        "failures_in_a_row": 0,
        "started_at": 0.0,
        "seen_at": NOW,
        "jobs": tuple(
            WorkerJob(job_id=f"{name}-{each}", name="test", runs_on="linux", attempt=1, started_at=980.0)
            for each in range(jobs)
        ),
        **changes,
    }
    return WorkerView(**values)  # type: ignore[arg-type]  # the names are those of the fields


def running(number: int, *, on: str = "moor", repository: str = "reef/tide") -> Holder:
    return Holder(
        run_id=f"run-{number}",
        job_id=f"job-{number}",
        name="test",
        repository=repository,
        worker_id=on,
        started_at=980.0,
    )


FREE = (worker(),)
FULL_HOUR = OwnerStartsOfHour(quota=3, started=(OwnerStarts(1200.0, 1), OwnerStarts(1260.0, 2)))


def throttle(scope: BucketScope, name: str, tokens: float) -> Throttle:
    """A bucket that gives a token every ten seconds."""
    rate = Rate(text="6/m:1", per_second=0.1, burst=1)
    return Throttle(key=BucketKey(scope, name), rate=rate, tokens=tokens)


def facts(**changes: object) -> WaitFacts:
    values: dict[str, object] = {
        "now": NOW,
        "run_id": "run-9",
        "job_id": "job-9",
        "name": "build",
        "state": JobState.WAITING,
        "reason": Reason.PLANNED,
        "repository": "acme/app",
        "owner": "acme",
        "runs_on": "linux",
        "since": 990.0,
        "workers": (worker(jobs=2),),
        "running": (running(1), running(2)),
        "recent": RECENT,
        **changes,
    }
    return WaitFacts(**values)  # type: ignore[arg-type]  # the names are those of the fields


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        pytest.param(
            {"state": None, "job_id": None},
            WaitReason.NOT_PLANNED_YET,
            "Its workflow has not been read yet.",
            id="not planned yet",
        ),
        pytest.param(
            {"state": None, "until": 1030.0, "detail": "the forge did not answer"},
            WaitReason.BACKOFF,
            "Its workflow could not be read, and is tried again: the forge did not answer.",
            id="planning that is tried again",
        ),
        pytest.param(
            {"state": None, "until": 1030.0},
            WaitReason.BACKOFF,
            "Its workflow could not be read, and is tried again.",
            id="planning that is tried again, nothing known of why",
        ),
        pytest.param(
            {"state": None, "until": NOW, "detail": "the forge did not answer"},
            WaitReason.NOT_PLANNED_YET,
            "Its workflow has not been read yet.",
            id="planning whose time has come again",
        ),
        pytest.param(
            {"state": None, "not_before": 86400.0},
            WaitReason.NOT_BEFORE,
            "It was asked for to start at 1970-01-02T00:00:00.000Z.",
            id="asked for later",
        ),
        pytest.param(
            {"state": None, "workers": (worker(state=WorkerState.PAUSED), worker(presence=Presence.LOST))},
            WaitReason.PAUSED,
            "Its workflow is to be read, and no worker takes anything: 1 paused.",
            id="planning while all are paused",
        ),
        pytest.param(
            {"state": None, "workers": (worker(state=WorkerState.PAUSED), worker("fen"))},
            WaitReason.NOT_PLANNED_YET,
            "Its workflow has not been read yet.",
            id="planning while one is paused",
        ),
        pytest.param(
            {
                "state": None,
                "workers": (
                    worker("tor", state=WorkerState.PAUSED),
                    worker("moor", refuses=Resource.DISK, refusal="1 % of the disk is free"),
                    worker("fen", refuses=Resource.MEMORY, refusal="1 % of the memory is free"),
                ),
            },
            WaitReason.GOVERNOR,
            "Its workflow is to be read, and moor does not while 1 % of the disk is free, and 1 other too.",
            id="planning while no disk has room",
        ),
        pytest.param(
            {
                "state": None,
                "workers": (worker(refuses=Resource.DISK), worker("fen", refuses=Resource.LOAD)),
            },
            WaitReason.NOT_PLANNED_YET,
            "Its workflow has not been read yet.",
            id="planning while one machine has load, which does not hinder it",
        ),
        pytest.param(
            {"state": JobState.BLOCKED},
            WaitReason.NEEDS,
            "The jobs it needs have just ended.",
            id="needs that have ended",
        ),
        pytest.param(
            {
                "state": JobState.BLOCKED,
                "needs": [
                    UnmetNeed(job_id="a", name="lint", state=JobState.RUNNING),
                    UnmetNeed(job_id="b", name="unit", state=JobState.WAITING),
                ],
            },
            WaitReason.NEEDS,
            "It needs jobs that have not ended: lint (running), unit (waiting).",
            id="needs",
        ),
        pytest.param(
            {
                "state": JobState.BLOCKED,
                "group": "deploy",
                "group_ahead": [running(1), Holder(run_id="run-2")],
            },
            WaitReason.CONCURRENCY_GROUP,
            "Job test of run run-1 has the concurrency group 'deploy', 1 more before it.",
            id="a group that a job has",
        ),
        pytest.param(
            {"state": JobState.BLOCKED, "group": "deploy", "group_ahead": [Holder(run_id="run-2")]},
            WaitReason.CONCURRENCY_GROUP,
            "Run run-2 has the concurrency group 'deploy'.",
            id="a group that a run has",
        ),
        pytest.param(
            {"state": JobState.APPROVAL},
            WaitReason.APPROVAL,
            "Its author is not known to be allowed to push, so it waits for approval: 'solstice approve run-9', "
            "or /ok-to-test under the change request.",
            id="approval",
        ),
        pytest.param(
            {
                "state": JobState.BACKOFF,
                "reason": Reason.CHECKOUT_FAILED,
                "detail": "no route",
                "until": 1030.0,
            },
            WaitReason.BACKOFF,
            "It is tried again after a while (checkout_failed: no route).",
            id="backoff",
        ),
        pytest.param(
            {"state": JobState.BACKOFF, "reason": Reason.AGENT_LOST, "until": 1030.0},
            WaitReason.BACKOFF,
            "It is tried again after a while (agent_lost).",
            id="backoff without a detail",
        ),
        pytest.param(
            {"runs_on": "illumos", "running": ()},
            WaitReason.NO_WORKER_FOR_LABEL,
            "No worker serves the label illumos; there are some for linux.",
            id="no worker for the label",
        ),
        pytest.param(
            {"workers": (worker(presence=Presence.LOST),)},
            WaitReason.NO_WORKER_FOR_LABEL,
            "No worker serves the label linux; there is none at all.",
            id="the only worker is lost",
        ),
        pytest.param(
            {"workers": (worker(slots={"linux": 0}, limit=0),)},
            WaitReason.NO_WORKER_FOR_LABEL,
            "No worker serves the label linux; there is none at all.",
            id="no slots",
        ),
        pytest.param(
            {
                "workers": (
                    worker("a", state=WorkerState.PAUSED),
                    worker("b", state=WorkerState.DRAINING),
                    worker("c", state=WorkerState.QUARANTINED, quarantined_until=1060.0),
                )
            },
            WaitReason.PAUSED,
            "No worker of the label linux takes jobs: 1 draining, 1 paused, 1 quarantined.",
            id="paused",
        ),
        pytest.param(
            {"cap": 1, "running_of_repository": [running(3, repository="acme/app")]},
            WaitReason.REPOSITORY_CAP,
            "acme/app may run 1 job at once, and does.",
            id="the repository's cap",
        ),
        pytest.param(
            {"owner_cap": 2, "running_of_owner": [running(3), running(4)], "ahead": 5},
            WaitReason.OWNER_CAP,
            "acme may run 2 jobs at once, and does.",
            id="the owner's cap",
        ),
        pytest.param(
            {
                "cap": 1,
                "running_of_repository": [running(3, repository="acme/app")],
                "owner_cap": 1,
                "running_of_owner": [running(3, repository="acme/app")],
            },
            WaitReason.REPOSITORY_CAP,
            "acme/app may run 1 job at once, and does.",
            id="the cap that is nearer of two",
        ),
        pytest.param(
            {"workers": FREE, "owner_hour": FULL_HOUR, "ahead": 7},
            WaitReason.RATE_LIMITED,
            "As many jobs of acme have started as may for now (3 in any hour); 7 jobs before it.",
            id="the owner's hour",
        ),
        pytest.param(
            {"owner_hour": FULL_HOUR, "ahead": 1},
            WaitReason.SLOTS_BUSY,
            "Others have all 2 slots of linux; 1 job before it.",
            id="the owner's hour, and no slot either",
        ),
        pytest.param(
            {"cap": 2, "running_of_repository": [running(3, repository="acme/app")], "ahead": 1},
            WaitReason.SLOTS_BUSY,
            "Others have all 2 slots of linux; 1 job before it.",
            id="room, and no slot",
        ),
        pytest.param(
            {"ahead": 0},
            WaitReason.SLOTS_BUSY,
            "Others have all 2 slots of linux; it is the next.",
            id="the next",
        ),
        pytest.param(
            {"workers": (worker(jobs=1),), "running": (running(1),)},
            WaitReason.SLOTS_BUSY,
            "A slot is free: it starts in a moment.",
            id="a free slot",
        ),
        pytest.param(
            {"workers": (worker(slots={}, limit=0, jobs=1),), "running": (running(1),), "ahead": 3},
            WaitReason.SLOTS_BUSY,
            "Others have the slot of linux; 3 jobs before it.",
            id="a worker that never told its slots",
        ),
        pytest.param(
            {"workers": FREE, "running": (), "ahead": 1},
            WaitReason.SLOTS_BUSY,
            "A slot is free: it starts in a moment.",
            id="a free slot for it and the one before it",
        ),
        pytest.param(
            {"workers": FREE, "running": (), "ahead": 2},
            WaitReason.SLOTS_BUSY,
            "Others have all 2 slots of linux; 2 jobs before it.",
            id="free slots for those before it alone",
        ),
        pytest.param(
            {"workers": (worker(jobs=1, shrunk_to=1),), "running": (running(1),)},
            WaitReason.SLOTS_BUSY,
            "Others have the slot of linux (1 worker fewer at once for now, after failures or under load); "
            "it is the next.",
            id="a worker under pressure",
        ),
        pytest.param(
            {
                "workers": (
                    worker("tor", jobs=2),
                    worker("moor", refuses=Resource.LOAD, refusal="the load is 50.0", condition_at=997.0),
                    worker("fen", refuses=Resource.DISK),
                    worker("dune", refuses=Resource.DISK),
                ),
            },
            WaitReason.GOVERNOR,
            "governor(load): moor starts nothing while the load is 50.0 (measured 3 s ago), and 2 others too.",
            id="every worker with a slot lacks something",
        ),
        pytest.param(
            {"workers": (worker(refuses=Resource.LOAD, refusal="the load is 50.0"),)},
            WaitReason.GOVERNOR,
            "governor(load): moor starts nothing while the load is 50.0.",
            id="a shortage of unknown age",
        ),
        pytest.param(
            {"workers": (worker(refuses=Resource.LOAD, refusal="the load is 50.0", condition_at=NOW),)},
            WaitReason.GOVERNOR,
            "governor(load): moor starts nothing while the load is 50.0 (measured just now).",
            id="a shortage of this moment",
        ),
        pytest.param(
            {"workers": (worker(jobs=1), worker("fen", refuses=Resource.LOAD)), "ahead": 1},
            WaitReason.SLOTS_BUSY,
            "Others have all 4 slots of linux; 1 job before it.",
            id="slots of a worker that lacks something are not free",
        ),
        pytest.param(
            {"workers": FREE, "throttles": [throttle(BucketScope.LABEL, "linux", 0.0)]},
            WaitReason.RATE_LIMITED,
            "As many jobs of the label linux have started as may for now (6/m:1); it is the next.",
            id="the label's rate",
        ),
        pytest.param(
            {
                "workers": FREE,
                "throttles": [
                    throttle(BucketScope.LABEL, "linux", 0.5),
                    throttle(BucketScope.REPOSITORY, "acme/app", 0.0),
                ],
            },
            WaitReason.RATE_LIMITED,
            "As many jobs of acme/app have started as may for now (6/m:1); it is the next.",
            id="the rate that delays it most",
        ),
        pytest.param(
            {"workers": FREE, "throttles": [throttle(BucketScope.LABEL, "linux", 1.0)]},
            WaitReason.SLOTS_BUSY,
            "A slot is free: it starts in a moment.",
            id="a rate with a token for it",
        ),
    ],
)
def test_why_a_job_waits(changes: dict[str, object], reason: WaitReason, detail: str) -> None:
    why = explain(facts(**changes))
    assert why is not None
    assert (why.reason, why.detail) == (reason, detail)
    assert why.since == 990.0


def test_a_job_whose_vm_is_being_prepared_waits_since_that_began() -> None:
    why = explain(facts(state=JobState.RUNNING, provisioning_since=988.0))
    assert why is not None
    assert (why.reason, why.since) == (WaitReason.PROVISIONING, 988.0)
    assert why.detail == "It has a slot, and its worker prepares its container or VM, for 12 s."


@pytest.mark.parametrize(
    "state", [state for state in JobState if state.final or state is JobState.RUNNING], ids=str
)
def test_what_runs_or_has_ended_does_not_wait(state: JobState) -> None:
    assert explain(facts(state=state)) is None


def found(**changes: object) -> WaitExplanation:
    why = explain(facts(**changes))
    assert why is not None
    return why


class TestFurtherFacts:
    def test_who_has_the_slots(self) -> None:
        assert [holder.job_id for holder in found().holders] == ["job-1", "job-2"]

    def test_of_very_many_holders_the_first_are_named(self) -> None:
        assert len(found(running=[running(number) for number in range(500)]).holders) == 20

    def test_how_many_are_ahead_in_a_group_or_for_a_slot_and_nowhere_else(self) -> None:
        assert found(ahead=4).ahead == 4
        assert found(state=JobState.BLOCKED, group="x", group_ahead=[running(1)]).ahead == 1
        assert found(state=JobState.BLOCKED, ahead=4).ahead is None

    def test_very_many_ahead_are_counted_no_further(self) -> None:
        why = found(ahead=COUNTED)
        assert why.detail == "Others have all 2 slots of linux; 10000 jobs or more before it."
        assert why.expected_start is None

    def test_when_a_backoff_or_a_quarantine_ends(self) -> None:
        assert found(state=JobState.BACKOFF, until=1030.0).until == 1030.0
        quarantined = worker(state=WorkerState.QUARANTINED, quarantined_until=1060.0)
        later = worker("fen", state=WorkerState.QUARANTINED, quarantined_until=1090.0)
        assert found(workers=(later, quarantined)).until == 1060.0
        # An order counts before a quarantine: it takes nothing after its end either.
        paused = worker("tor", state=WorkerState.PAUSED, quarantined_until=1030.0)
        assert found(workers=(paused, quarantined)).until == 1060.0
        assert found(workers=(paused,)).until is None
        assert found(state=None, workers=(quarantined,)).until == 1060.0

    def test_when_it_was_asked_for(self) -> None:
        why = found(state=None, not_before=1600.0)
        assert (why.until, why.expected_start) == (1600.0, Forecast(earliest=1600.0, latest=1600.0))

    def test_when_planning_is_tried_again(self) -> None:
        assert found(state=None, until=1030.0).until == 1030.0

    def test_when_a_rate_has_a_token_for_it_and_those_before_it(self) -> None:
        limits = [throttle(BucketScope.LABEL, "linux", 0.5)]
        why = found(workers=FREE, running=(), throttles=limits, ahead=1)
        assert (why.until, why.resource, why.ahead) == (1015.0, "label", 1)
        assert why.expected_start == Forecast(earliest=1015.0, latest=1015.0)

    def test_which_resource_is_short(self) -> None:
        why = found(workers=(worker(refuses=Resource.LOAD),), ahead=3)
        assert (why.resource, why.ahead) == ("load", 3)
        assert found(state=None, workers=(worker(refuses=Resource.DISK),)).resource == "disk"

    def test_which_jobs_it_needs_or_has_to_wait_out(self) -> None:
        need = UnmetNeed(job_id="a", name="lint", state=JobState.RUNNING)
        expected = Holder(run_id="run-9", job_id="a", name="lint", repository="acme/app")
        assert found(state=JobState.BLOCKED, needs=[need]).holders == (expected,)
        ahead = [running(1), running(2)]
        assert list(found(state=JobState.BLOCKED, group="x", group_ahead=ahead).holders) == ahead

    def test_who_has_the_room_under_a_cap(self) -> None:
        own = [running(3, repository="acme/app")]
        why = found(cap=1, running_of_repository=own, ahead=4)
        assert (list(why.holders), why.ahead) == (own, 4)

    def test_how_many_are_before_it_when_no_worker_takes_jobs(self) -> None:
        assert found(workers=(), ahead=4).ahead == 4
        assert found(workers=(worker(state=WorkerState.PAUSED),), ahead=4).ahead == 4


class TestExpectedStart:
    def test_is_when_a_slot_comes_free(self) -> None:
        assert found().expected_start == Forecast(earliest=1040.0, latest=1040.0)

    def test_is_when_the_repository_has_room_too(self) -> None:
        own = replace(running(3, repository="acme/app"), started_at=990.0)
        assert found(cap=1, running_of_repository=[own]).expected_start == Forecast(
            earliest=1050.0, latest=1050.0
        )

    def test_is_when_the_owner_has_room_too(self) -> None:
        own = replace(running(3, repository="acme/docs"), started_at=990.0)
        start = found(owner_cap=1, running_of_owner=[own], ahead_of_owner=0).expected_start
        assert start == Forecast(earliest=1050.0, latest=1050.0)
        # Another job of the owner goes before.
        later = found(owner_cap=1, running_of_owner=[own], ahead=1, ahead_of_owner=1).expected_start
        assert later is not None
        assert later.earliest > 1050.0

    @pytest.mark.parametrize(
        ("ahead", "until"), [(0, 1200.0), (1, 1260.0), (2, 1260.0), (3, 1200.0 + 3600.0)], ids=str
    )
    def test_is_not_before_its_owner_may_start_so_many(self, ahead: int, until: float) -> None:
        why = found(workers=FREE, running=(), owner_hour=FULL_HOUR, ahead=ahead, ahead_of_owner=ahead)
        assert (why.resource, why.until) == ("owner", until)
        assert why.expected_start == Forecast(earliest=until, latest=until)

    def test_there_is_no_forecast_where_an_owner_may_start_nothing(self) -> None:
        why = found(workers=FREE, running=(), owner_hour=OwnerStartsOfHour(quota=0, started=()))
        assert (why.reason, why.until, why.expected_start) == (WaitReason.RATE_LIMITED, None, None)

    def test_is_not_before_the_end_of_a_backoff(self) -> None:
        start = found(state=JobState.BACKOFF, until=1300.0).expected_start
        assert start == Forecast(earliest=1300.0, latest=1300.0)

    def test_counts_no_slot_of_a_worker_that_takes_no_jobs(self) -> None:
        """Slots of a draining worker do not become free for other jobs."""
        workers = (worker("moor", jobs=1, slots={"linux": 1}), worker("fen", state=WorkerState.DRAINING))
        both = (replace(running(1), started_at=990.0), running(2, on="fen"))
        assert found(workers=workers, running=both).expected_start == Forecast(earliest=1050.0, latest=1050.0)

    @pytest.mark.parametrize(
        "changes",
        [
            {"recent": ()},
            {"state": None},
            {"state": JobState.BLOCKED},
            {"workers": ()},
            {"workers": (worker(state=WorkerState.PAUSED),)},
        ],
        ids=["no history", "not planned", "blocked", "no worker", "paused"],
    )
    def test_there_is_no_forecast_without_knowledge(self, changes: dict[str, object]) -> None:
        assert found(**changes).expected_start is None


LAST = ("acme/app",)


def test_while_a_worker_takes_other_repositories_alone_it_says_until_when() -> None:
    alone = worker(repositories_last=LAST, others_alone_until=NOW + 5)
    why = found(repository="acme/app", workers=(alone,))
    assert (why.reason, why.until) == (WaitReason.OTHERS_FIRST, NOW + 5)
    later = worker("quay", repositories_last=LAST, others_alone_until=NOW + 9)
    assert found(repository="acme/app", workers=(alone, later)).until == NOW + 5
    for other in (worker("quay"), worker("quay", repositories_last=LAST)):
        assert found(repository="acme/app", workers=(alone, other)).reason is WaitReason.SLOTS_BUSY
    assert found(repository="reef/tide", workers=(alone,)).reason is WaitReason.SLOTS_BUSY


def test_while_all_slots_are_busy_it_says_that_others_go_first_and_expects_no_start() -> None:
    full = worker(jobs=2, repositories_last=LAST)
    why = found(repository="acme/app", workers=(full,), running=[running(1), running(2)])
    assert why.reason is WaitReason.SLOTS_BUSY
    assert why.detail.startswith("Others have all 2 slots of linux; ")
    assert (
        " Jobs of other repositories go first, since jobs of acme/app failed there before moor" in why.detail
    )
    assert why.expected_start is None
    other = found(repository="reef/tide", workers=(full,), running=[running(1), running(2)])
    assert "go first" not in other.detail
