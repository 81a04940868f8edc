"""Random sequences of operations: an inbox does what a few dictionaries would."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.log import DeliveryFilter
from solstice_forge.inbox.protocol import Decision
from tests.inboxes import NOON, delivery, keep_in_one_batch
from tests.servers.postgresql import ScratchDatabase

NAMES = [f"{hook}-{event}" for event in "abcdef" for hook in ("repo", "org")]
"""Two hooks report each event, so two delivery ids have one content."""


class Machine(RuleBasedStateMachine):
    """Two processes on one inbox, beside the model of it."""

    def __init__(self, fresh_url: Callable[[], str]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        url = fresh_url()
        self.inboxes = [self.runner.run(self._open(url)) for _ in range(2)]
        self.now = NOON
        self.by_id: dict[str, tuple[float, str | None]] = {}
        """Delivery id: when it came, and its request."""
        self.by_content: dict[str, tuple[str, bool]] = {}
        """Content: the delivery id that asked first, and whether that is published."""
        self.copies: list[float] = []

    async def _open(self, url: str) -> InboxStore:
        return await self.stack.enter_async_context(open_inbox(url))

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def expected(self, name: str, *, asks: bool) -> tuple[Decision, tuple[str, ...]]:
        """The expected result of storing a delivery, and the model after it."""
        event, request = name[-1], f"request of forgejo {name}"
        if name in self.by_id:
            known = self.by_id[name][1]
            self.copies.append(self.now)
            return Decision.DUPLICATE, () if known is None else (known,)
        if asks and event in self.by_content:
            self.copies.append(self.now)
            return Decision.DUPLICATE, (f"request of forgejo {self.by_content[event][0]}",)
        self.by_id[name] = (self.now, request if asks else None)
        if asks:
            self.by_content[event] = (name, False)
            return Decision.ACCEPTED, (request,)
        return Decision.IGNORED, ()

    @rule(
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=8),
        asks=st.booleans(),
        where=st.integers(0, 1),
        later=st.sampled_from([0.0, 60.0]),
    )
    def keep(self, names: Sequence[str], asks: bool, where: int, later: float) -> None:
        self.now += later

        deliveries = [delivery(name, key=f"k {name[-1]}", asks=asks, received_at=self.now) for name in names]
        answers = self.runner.run(keep_in_one_batch(self.inboxes[where], *deliveries))
        expected = [self.expected(name, asks=asks) for name in names]
        assert [(one.decision, one.request_ids) for one in answers] == expected

    @rule(limit=st.integers(1, 4), where=st.integers(0, 1))
    def publish(self, limit: int, where: int) -> None:
        async def work() -> list[str]:
            rows = await self.inboxes[where].pending(limit)
            await self.inboxes[where].published([row.row_id for row in rows])
            return [row.request_id for row in rows]

        for request_id in self.runner.run(work()):
            name = request_id.rpartition(" ")[2]
            assert self.by_content[name[-1]] == (name, False)
            self.by_content[name[-1]] = (name, True)

    @rule(back=st.sampled_from([0.0, 60.0, 120.0]), where=st.integers(0, 1))
    def forget(self, back: float, where: int) -> None:
        before = self.now - back

        async def work() -> None:
            while (await self.inboxes[where].forget(before, 3)).more:
                pass

        self.runner.run(work())
        waiting = {name for name, published in self.by_content.values() if not published}
        gone = {name for name, (at, _) in self.by_id.items() if at < before and name not in waiting}
        self.by_id = {name: known for name, known in self.by_id.items() if name not in gone}
        self.by_content = {event: known for event, known in self.by_content.items() if known[0] not in gone}
        self.copies = [at for at in self.copies if at >= before]

    @rule(where=st.integers(0, 1))
    def strip(self, where: int) -> None:
        self.runner.run(self.inboxes[where].strip(self.now, 100))

    @invariant()
    def log_and_backlog_are_those_of_the_model(self) -> None:
        async def work() -> tuple[int, Sequence[Decision]]:
            listed = await self.inboxes[0].entries(DeliveryFilter(), limit=1000)
            return await self.inboxes[1].backlog(), [one.decision for one in listed.entries]

        backlog, decisions = self.runner.run(work())
        assert backlog == sum(not published for _, published in self.by_content.values())
        assert decisions.count(Decision.DUPLICATE) == len(self.copies)
        assert len(decisions) == len(self.by_id) + len(self.copies)


def test_inbox_in_a_file_does_what_the_model_does(tmp_path: Path) -> None:
    numbers = iter(range(10_000))
    run_state_machine_as_test(
        lambda: Machine(lambda: f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"),  # type: ignore[arg-type]  # a factory is documented, its type says a class
        settings=settings(max_examples=20, stateful_step_count=20, deadline=None),
    )


def test_inbox_on_postgresql_does_what_the_model_does(postgresql_database: ScratchDatabase) -> None:
    def fresh() -> str:
        tables = postgresql_database.query(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'inbox%' AND tablename NOT IN ('inbox_migrations', 'inbox_sweep_cursor')"
        )
        if tables:
            postgresql_database.query(f"TRUNCATE {', '.join(table for (table,) in tables)}")
            postgresql_database.query("UPDATE inbox_sweep_cursor SET stripped_to = 0")
        return postgresql_database.url

    run_state_machine_as_test(
        lambda: Machine(fresh),  # type: ignore[arg-type]  # a factory is documented, its type says a class
        settings=settings(
            max_examples=10,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
