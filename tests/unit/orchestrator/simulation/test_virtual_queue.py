"""Queues in memory, which compare heads alone, start the jobs a full sort would."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import Candidate
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation import virtual_queue
from solstice_orchestrator.simulation.virtual_queue import VirtualQueues
from tests.scheduler_model import SchedulerModel

SLOTS = {"linux": 3, "illumos": 1}
LIMIT = 3
MAX_WAIT = 100.0
REPOSITORIES = ("acme/app", "acme/docs", "reef/tide")


class SameStartsAsTheModel(RuleBasedStateMachine):
    """Applies arrivals, ends and cancels to both at once."""

    @initialize(
        labels=st.sampled_from([("linux",), ("linux", "illumos")]),
        of=st.dictionaries(st.sampled_from(REPOSITORIES), st.integers(0, 2)),
        default=st.sampled_from([None, 1, 4]),
        of_owners=st.dictionaries(st.sampled_from(["acme", "reef"]), st.integers(0, 3)),
        in_an_hour=st.sampled_from([None, 2, 9]),
        rates=st.sampled_from(["", "*=450/h", "acme/app=900/h:2"]),
    )
    def open(
        self,
        labels: Sequence[str],
        of: dict[str, int],
        default: int | None,
        of_owners: dict[str, int],
        in_an_hour: int | None,
        rates: str,
    ) -> None:
        # A claim of several jobs asks for as many of each label as it has slots for; where caps leave some of those out,
        # a less urgent one of another label may take their repository's place. Here jobs start one by one.
        alone = len(labels) == 1
        caps = Caps(of=of, default=default) if alone else Caps()
        of_hour = Caps(default=in_an_hour) if alone else Caps()
        quotas = Quotas(slots=Caps(of=of_owners) if alone else Caps(), starts_per_hour=of_hour)
        of_labels = parse_rates("linux=225/h:2" if rates else "")
        bounds = StartRates(labels=of_labels, repositories=parse_rates(rates if alone else ""))
        self.slots = {label: SLOTS[label] for label in labels}
        self.model = SchedulerModel(caps=caps, quotas=quotas, rates=bounds, max_wait_seconds=MAX_WAIT)
        limits = StartLimits(caps=caps, quotas=quotas, rates=bounds)
        self.lines = VirtualQueues[str](self.slots, limit=LIMIT, limits=limits, max_wait_seconds=MAX_WAIT)
        self.running: dict[str, Candidate] = {}

    @rule(
        repository=st.sampled_from(REPOSITORIES),
        count=st.integers(1, 12),
        label=st.sampled_from(sorted(SLOTS)),
        priority=st.sampled_from(Priority),
    )
    def arrive(self, repository: str, count: int, label: str, priority: Priority) -> None:
        if label not in self.slots:
            label = "linux"
        ids = self.model.arrive(repository, count, label=label, priority=priority)
        ages = range(self.model.arrivals - count + 1, self.model.arrivals + 1)
        self.lines.arrive(label, priority, repository, list(zip(ages, ids, strict=True)), self.model.now)

    @rule(seconds=st.integers(1, 80) | st.just(3600))
    def advance_clock(self, seconds: int) -> None:
        self.model.now += seconds

    @rule()
    def start(self) -> None:
        chosen = self.model.claim("worker", self.free(), LIMIT - len(self.model.running))
        started = self.lines.start(self.model.now)
        assert [job for _, job in started] == [each.job_id for each in chosen]
        self.running |= {job: candidate for candidate, job in started}

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model.running)))
        self.model.end(job_id)
        self.lines.end(self.running.pop(job_id), self.model.now)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.model.waiting))
        self.model.cancel([gone.job_id])
        self.lines.withdraw(gone.label, gone.priority, gone.repository, gone.age)

    @invariant()
    def as_many_wait(self) -> None:
        for label in self.slots:
            assert self.lines.waiting(label) == sum(each.label == label for each in self.model.waiting)

    def free(self) -> Mapping[str, int]:
        return {
            label: slots - sum(job.label == label for _, job in self.model.running.values())
            for label, slots in self.slots.items()
        }


SameStartsAsTheModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSameStartsAsTheModel = SameStartsAsTheModel.TestCase


def test_heaps_are_rid_of_what_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A low job that never starts leaves started ones in the heap of longest waits."""
    monkeypatch.setattr(virtual_queue, "TIDY", 8)
    waiting = VirtualQueues[int]({"linux": 1}, limit=1, max_wait_seconds=1000.0)
    waiting.arrive("linux", Priority.LOW, "reef/tide", [(0, 0)], 0.0)
    for age in range(1, 500):
        waiting.arrive("linux", Priority.HIGH, f"acme/{age}", [(age, age)], float(age))
        ((candidate, job),) = waiting.start(float(age))
        assert job == age
        waiting.end(candidate, float(age))
    assert len(waiting._by_wait["linux"]._heap) <= 16
    # It is overdue, and so goes before the more urgent one.
    waiting.arrive("linux", Priority.HIGH, "acme/500", [(500, 500)], 1999.0)
    ((_, job),) = waiting.start(2000.0)
    assert job == 0


def test_a_new_repository_is_level_with_the_first_that_waits() -> None:
    waiting = VirtualQueues[str]({"linux": 1}, limit=1, max_wait_seconds=1e9)
    started: list[str] = []

    def claim_all() -> None:
        ((candidate, job),) = waiting.start(0.0)
        started.append(job)
        waiting.end(candidate, 0.0)

    waiting.arrive("linux", Priority.DEFAULT, "acme/app", [(age, f"a{age}") for age in range(5)], 0.0)
    claim_all()
    claim_all()
    waiting.arrive("linux", Priority.DEFAULT, "reef/tide", [(5, "b")], 0.0)
    for _ in range(4):
        claim_all()
    assert started == ["a0", "a1", "a2", "b", "a3", "a4"]


def test_of_those_who_began_to_wait_together_the_older_is_overdue_first() -> None:
    waiting = VirtualQueues[str]({"linux": 1}, limit=1, max_wait_seconds=10.0)
    waiting.arrive("linux", Priority.LOW, "acme/app", [(7, "younger")], 0.0)
    waiting.arrive("linux", Priority.LOW, "acme/app", [(3, "older")], 0.0)
    waiting.arrive("linux", Priority.LOW, "acme/app", [(9, "youngest")], 0.0)
    started = []
    for _ in range(3):
        ((candidate, job),) = waiting.start(20.0)
        started.append(job)
        waiting.end(candidate, 20.0)
    assert started == ["older", "younger", "youngest"]
