"""The order keeps its promises under random arrivals, starts, ends, losses and cancels."""

import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import Candidate, rank
from solstice_orchestrator.scheduling.quotas import HOUR, Quotas
from tests.scheduler_model import SchedulerModel

LABELS = ("linux", "illumos")
REPOSITORIES = ("acme/app", "acme/docs", "reef/tide")
SLOTS = {"worker-a": {"linux": 2, "illumos": 1}, "worker-b": {"linux": 3}}
MAX_WAIT = 100.0


def _most(cap: int | None) -> float:
    return math.inf if cap is None else cap


class Order(RuleBasedStateMachine):
    """Two workers with slots, three repositories of which some have caps, and a moved clock."""

    @initialize(
        of=st.dictionaries(st.sampled_from(REPOSITORIES), st.integers(0, 2)),
        default=st.sampled_from([None, 1, 4]),
        of_owners=st.dictionaries(st.sampled_from(["acme", "reef"]), st.integers(0, 4)),
        in_an_hour=st.sampled_from([None, 3, 20]),
    )
    def open(
        self, of: dict[str, int], default: int | None, of_owners: dict[str, int], in_an_hour: int | None
    ) -> None:
        self.quotas = Quotas(slots=Caps(of=of_owners), starts_per_hour=Caps(default=in_an_hour))
        self.model = SchedulerModel(
            caps=Caps(of=of, default=default), quotas=self.quotas, max_wait_seconds=MAX_WAIT
        )
        self.begun: list[tuple[float, str]] = []
        self.arrivals: list[str] = []
        self.gone: list[str] = []

    # -- operations ----------------------------------------------------------------------------------------

    @rule(
        repository=st.sampled_from(REPOSITORIES),
        count=st.integers(1, 12),
        label=st.sampled_from(LABELS),
        priority=st.sampled_from(Priority),
    )
    def arrive(self, repository: str, count: int, label: str, priority: Priority) -> None:
        self.arrivals += self.model.arrive(repository, count, label=label, priority=priority)

    @rule(seconds=st.integers(1, 80) | st.just(1900))
    def advance_clock(self, seconds: int) -> None:
        self.model.now += seconds

    @rule(worker=st.sampled_from(sorted(SLOTS)), limit=st.integers(1, 6))
    def claim(self, worker: str, limit: int) -> None:
        free = self.free(worker)
        before = list(self.model.waiting)
        chosen = self.model.claim(worker, free, limit)
        assert len(chosen) <= limit
        self.begun += [(self.model.now, each.owner) for each in chosen]
        self.nothing_idles(free, chosen, limit)
        for label in LABELS:
            self.no_job_is_passed_by(
                [each for each in before if each.label == label],
                [each for each in chosen if each.label == label],
            )

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model.running)))
        self.model.end(job_id)
        self.gone.append(job_id)

    @rule(worker=st.sampled_from(sorted(SLOTS)))
    def lose(self, worker: str) -> None:
        self.model.lose(worker)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        some = st.lists(
            st.sampled_from([each.job_id for each in self.model.waiting]), min_size=1, max_size=5, unique=True
        )
        cancelled = data.draw(some)
        self.model.cancel(cancelled)
        self.gone += cancelled

    # -- invariants --------------------------------------------------------------------------------------

    @invariant()
    def no_slot_is_over_used(self) -> None:
        for worker, slots in SLOTS.items():
            used = Counter(job.label for holder, job in self.model.running.values() if holder == worker)
            assert all(used[label] <= slots.get(label, 0) for label in used)

    @invariant()
    def caps_are_not_exceeded(self) -> None:
        for repository, running in self.model.running_of().items():
            cap = self.model.caps.cap(repository)
            assert cap is None or running <= cap

    @invariant()
    def quotas_are_not_exceeded(self) -> None:
        running = Counter(job.owner for _, job in self.model.running.values())
        in_the_last_hour = Counter(owner for at, owner in self.begun if at > self.model.now - HOUR)
        for owner in ("acme", "reef"):
            assert running[owner] <= _most(self.quotas.slots.cap(owner))
            assert in_the_last_hour[owner] <= _most(self.quotas.starts_per_hour.cap(owner))

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        here = [each.job_id for each in self.model.waiting] + list(self.model.running) + self.gone
        assert sorted(here) == sorted(self.arrivals)

    @invariant()
    def those_who_wait_have_turns_of_their_own(self) -> None:
        places = Counter(
            (each.label, each.priority, each.repository, each.start_tag) for each in self.model.waiting
        )
        assert set(places.values()) <= {1}

    def nothing_idles(self, free: dict[str, int], chosen: Sequence[Candidate], limit: int) -> None:
        """No slot is left free while a job fits it."""
        if len(chosen) == limit:
            return
        used = Counter(each.label for each in chosen)
        for job in self.model.waiting:
            assert not (self.has_room(job) and used[job.label] < free.get(job.label, 0)), job

    def no_job_is_passed_by(self, before: list[Candidate], chosen: list[Candidate]) -> None:
        """Overdue jobs start first, then by urgency, unless a cap of theirs is reached."""
        free_to_go = [each for each in before if each not in chosen and self.has_room(each)]
        for started in chosen:
            if self.model.is_overdue(started):
                continue
            assert not any(self.model.is_overdue(each) for each in free_to_go)
            assert not any(rank(each.priority) < rank(started.priority) for each in free_to_go)

    def has_room(self, job: Candidate) -> bool:
        remaining = self.model.start_limits().remaining([job.repository], [job.owner])
        return remaining.repositories.get(job.repository, 1) > 0 and remaining.owners.get(job.owner, 1) > 0

    def free(self, worker: str) -> dict[str, int]:
        used = Counter(job.label for holder, job in self.model.running.values() if holder == worker)
        return {label: slots - used[label] for label, slots in SLOTS[worker].items()}


Order.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestOrder = Order.TestCase


def test_a_low_job_under_a_constant_stream_of_high_ones_starts_once_it_is_overdue() -> None:
    model = SchedulerModel(max_wait_seconds=MAX_WAIT)
    (low,) = model.arrive("reef/tide", priority=Priority.LOW)
    waited = None
    for second in range(int(MAX_WAIT) * 2):
        model.now = float(second)
        model.arrive("acme/app", 2, priority=Priority.HIGH)
        for job in model.claim("worker", {"linux": 1}):
            model.end(job.job_id)
            if job.job_id == low:
                waited = model.now
    # Overdue is what has waited longer than the bound; the next free slot is a second away.
    assert waited == MAX_WAIT + 1
