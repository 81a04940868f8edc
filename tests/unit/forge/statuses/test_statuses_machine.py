"""Through losses, delays and kills a forge ends with the newest status, never older."""

import random
import sqlite3
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from solstice_common.storage.migrations import migrations_of, statements
from solstice_forge.remote.call_pacing import CallLimits
from solstice_forge.statuses.call_endings import CallEnding, Reported, RetryLater, Undeliverable
from solstice_forge.statuses.protocol import OutgoingStatus, StatusKeepResult
from solstice_forge.statuses.sqlite import _ended, _keep, _take, _take_over
from tests.statuses import reportable_status

HORIZON = 30.0
CONTEXT = "solstice/build"
NO_LIMITS = CallLimits()

Rank = tuple[str, int, int]


def rank_of(outgoing: OutgoingStatus) -> Rank:
    run_id, sequence, revision = outgoing.place.split(".")
    return run_id, int(sequence), int(revision)


@dataclass
class Forge:
    """Shows the last status, in the order in which calls arrive."""

    history: list[Rank] = field(default_factory=list)
    late: list[tuple[float, OutgoingStatus]] = field(default_factory=list)

    def show(self, outgoing: OutgoingStatus) -> None:
        self.history.append(rank_of(outgoing))

    def arrive(self, now: float) -> None:
        """Deliver the calls in transit that are due by now."""
        self.late.sort(key=lambda each: each[0])
        while self.late and self.late[0][0] <= now:
            self.show(self.late.pop(0)[1])


class Statuses(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        for migration in migrations_of("solstice_forge.statuses.schema.sqlite"):
            for statement in statements(migration.sql):
                self.connection.execute(statement)
        self.now = 1_790_000_000.0
        self.forge = Forge()
        self.under_way: list[OutgoingStatus] = []
        self.newest: Rank = ("", 0, 0)
        self.rng = random.Random(1)
        self.run, self.sequence = 1, 0

    def teardown(self) -> None:
        """Without faults, every status is reported in the end."""
        self.die(arrive_after=0.9)
        for _ in range(200):
            self.pass_time(10.0)
            self.begin()
            for outgoing in list(self.under_way):
                self.under_way.remove(outgoing)
                self.forge.show(outgoing)
                self.end(outgoing, Reported())
        assert not self.forge.late
        assert [self.newest] == self.forge.history[-1:] or not self.newest[0]
        self.connection.close()

    @rule(newer_run=st.booleans(), back=st.integers(0, 2), revision=st.integers(0, 1))
    def receive(self, newer_run: bool, back: int, revision: int) -> None:
        """Receive the next status of the newest run, a late one, or a copy."""
        self.run += newer_run
        self.sequence = 1 if newer_run else self.sequence + 1
        sequence = max(1, self.sequence - back)
        status = reportable_status(
            "running", context=CONTEXT, run=self.run, sequence=sequence, revision=revision or None
        )
        (stored,) = _keep(self.connection, [status], self.now)
        place = (status.run_id, sequence, revision)
        assert (stored is StatusKeepResult.WANTED) == (place > self.newest)
        self.newest = max(self.newest, place)
        self.begin()

    @rule(seconds=st.floats(0.1, 40.0))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.forge.arrive(self.now)
        self.begin()

    def begin(self) -> None:
        while isinstance(found := _take(self.connection, "forgejo", self.now, NO_LIMITS), OutgoingStatus):
            self.under_way.append(found)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        outgoing = self._one(data)
        self.forge.show(outgoing)
        self.end(outgoing, Reported())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), wait=st.sampled_from([0.0, 1.0, 45.0]))
    def fail(self, data: st.DataObject, wait: float) -> None:
        self.end(self._one(data), RetryLater(at=self.now + wait, why="500", failed=True, perhaps_done=False))

    @precondition(lambda self: self.under_way)
    @rule(
        data=st.data(), wait=st.sampled_from([0.0, 1.0, 45.0]), arrive_after=st.none() | st.floats(0.0, 0.99)
    )
    def lose_answer(self, data: st.DataObject, wait: float, arrive_after: float | None) -> None:
        outgoing = self._one(data)
        self._lose(outgoing, arrive_after)
        self.end(outgoing, RetryLater(at=self.now + wait, why="no answer", failed=True, perhaps_done=True))

    @rule(arrive_after=st.none() | st.floats(0.0, 0.99))
    def die(self, arrive_after: float | None) -> None:
        """Killed with calls under way; another takes over."""
        orphans = self.under_way
        self.under_way = []
        for outgoing in orphans:
            self._lose(outgoing, arrive_after)
        assert _take_over(self.connection, self.now, HORIZON) == len(orphans)
        for outgoing in orphans:
            # A process that was only frozen learns the end of its call, and changes nothing.
            if self.rng.random() < 0.5:
                self.end(outgoing, Reported())
        self.begin()

    @invariant()
    def never_goes_back(self) -> None:
        assert self.forge.history == sorted(self.forge.history)

    def end(self, outgoing: OutgoingStatus, ending: CallEnding) -> None:
        assert not isinstance(ending, Undeliverable)
        _ended(self.connection, outgoing, ending, now=self.now, horizon=HORIZON, limits=NO_LIMITS)
        self.begin()

    def _one(self, data: st.DataObject) -> OutgoingStatus:
        outgoing = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(outgoing)
        return outgoing

    def _lose(self, outgoing: OutgoingStatus, arrive_after: float | None) -> None:
        """It arrives later, within the horizon of its beginning, or never."""
        if arrive_after is not None:
            at = max(self.now, outgoing.since + HORIZON * arrive_after)
            self.forge.late.append((at, outgoing))
            self.forge.arrive(self.now)


Statuses.TestCase.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
TestStatuses = Statuses.TestCase
