"""Four simulated forges and the processes that report to them, on one fake time.

For two minutes they are slow, cut connections and limit calls; then they work; then for ten minutes they
answer 500; then they work again. `test_ten_minutes` says which statuses are stored, and what must follow.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from solstice_common.broker import open_broker
from solstice_common.messages import Source
from solstice_common.topology import STATUSES, QueueType
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import ForgeAccess
from solstice_forge.remote.source_access import timeouts_of
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.protocol import StatusKeepResult, StatusStore
from solstice_forge.statuses.reportable_status import ReportableStatus
from solstice_forge.statuses.reporter import StatusReporter
from solstice_forge.statuses.status_service import open_statuses, rules_of
from tests.fake_time import FakeTime, Timer, Wait
from tests.polling import wait_until
from tests.servers.forge_api import (
    Delayed,
    ForgeApi,
    Key,
    Reply,
    Request,
    Reset,
    Trouble,
    Truncated,
    Window,
    forge_api,
)
from tests.statuses import FORGE_STATES

GONE: Final = "f" * 40
"""A commit that no forge knows."""
STORM, CALM, OUTAGE = 120.0, 180.0, 600.0
"""How long each lasts, in seconds; in this order."""
SLOW_SECONDS: Final = 5.0
UNHEARD: Final = 598
"""The answer to a call of the outage whose caller is killed before it arrives."""
TROUBLES: Final[Sequence[Trouble | None]] = (
    None,
    Reply(status=500, document={"message": "Server Error"}),
    Reply(status=502),
    Reply(status=429, headers={"retry-after": "7"}),
    Reset(),
    Reset(carried_out=True),
    Truncated(),
    Delayed(seconds=4.0),
    Delayed(seconds=20.0),  # we no longer wait for it by then, but the forge still carries it out
)
WEIGHTS: Final = (40, 15, 10, 5, 5, 5, 5, 5, 10)
TIGHT: Final[Mapping[Source, Window]] = {
    Source.GITHUB: Window(calls=14, seconds=20),
    Source.GITLAB: Window(calls=14, seconds=20, status=429, prefix="ratelimit"),
    Source.GITEA: Window(calls=14, seconds=20, status=429),
    Source.FORGEJO: Window(calls=14, seconds=20, status=429),
}
"""The limits during the storm; those of Gitea and Forgejo are a proxy's."""
WIDE: Final[Mapping[Source, Window | None]] = {
    Source.GITHUB: Window(calls=5000, seconds=3600),
    Source.GITLAB: Window(calls=2000, seconds=60, status=429, prefix="ratelimit"),
    Source.GITEA: None,
    Source.FORGEJO: None,
}
"""The usual limits of the forges."""


@dataclass(frozen=True, kw_only=True)
class ReceivedCall:
    """A call about one context: its time, its answer (0: none), its status and sender."""

    at: float
    status: int
    reported: str


@dataclass(frozen=True, kw_only=True)
class PauseRequest:
    """A forge asked to be left alone between these moments."""

    origin: Source
    since: float
    until: float


@dataclass(kw_only=True)
class Replica:
    """A process with a store and a status reporter of its own."""

    store: StatusStore
    reporter: StatusReporter
    task: asyncio.Task[None]


@dataclass(kw_only=True)
class ForgeSimulation:
    """Four forges, the processes that report to them, and the time that all share."""

    settings: ForgeSettings
    time: FakeTime
    poll_timer: Timer
    calls: Timer
    delays: Timer
    forges: dict[Source, ForgeApi] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    abandoned: set[Wait] = field(default_factory=set)
    """Slow answers without a caller, which was killed."""
    stored: list[tuple[float, ReportableStatus]] = field(default_factory=list)
    pauses: list[PauseRequest] = field(default_factory=list)
    dealt: set[int] = field(default_factory=set)
    """The faults that have happened."""
    asks: dict[Source, tuple[int, float]] = field(default_factory=dict)
    """The status of the next answer of these, and for how many seconds it asks to be left alone."""
    killing: bool = False

    def __post_init__(self) -> None:
        self.begun = self.time.now
        self.outage_begins = self.begun + STORM + CALM
        self.outage_ends = self.outage_begins + OUTAGE
        self.rules = rules_of(self.settings)

    def behave(self, origin: Source, request: Request) -> Trouble | None:
        """The behaviour of a forge for a call now."""
        if GONE in request.path:
            return Reply(status=404, document={"message": "Not Found"})
        if self.time.now < self.begun + STORM:
            # The same for a context's first, second ... call, in any order of contexts.
            calls = len(received_calls(self.forges[origin], key_of(request)))
            dice = random.Random(f"{origin} {key_of(request)} {calls}")
            (number,) = dice.choices(range(len(TROUBLES)), WEIGHTS)
            self.dealt.add(number)
            return TROUBLES[number]
        if self.outage_begins <= self.time.now < self.outage_ends:
            if origin in self.asks:
                status, seconds = self.asks.pop(origin)
                self.pauses.append(PauseRequest(origin=origin, since=request.at, until=request.at + seconds))
                return Reply(status=status, headers={"retry-after": f"{seconds:g}"})
            if self.killing:
                return Delayed(seconds=SLOW_SECONDS, reply=Reply(status=UNHEARD))
            return Reply(status=500, document={"message": "Server Error"})
        return None

    def idle(self) -> bool:
        """Whether all reporters wait, for a time or for a slow answer."""
        whole = self.settings.forge_call_seconds
        awaited = [
            delay
            for delay in self.delays.waits - self.abandoned
            if self.time.now < min(delay.due, delay.begun + whole)
        ]
        return len(self.poll_timer.waits) == len(self.forges) and len(under_way()) <= len(awaited)

    async def advance_until(self, moment: float) -> None:
        await self.time.advance_until(moment, idle=self.idle, unless=self._may_kill)
        if self._may_kill():
            await self._kill_the_leader()
            await self.time.advance_until(moment, idle=self.idle)

    def _may_kill(self) -> bool:
        return self.killing and bool(self.delays.waits)

    async def start(self) -> None:
        """One more process."""
        ready: asyncio.Future[tuple[StatusStore, StatusReporter]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run_replica(len(self.replicas), ready))
        store, reporter = await ready
        self.replicas.append(Replica(store=store, reporter=reporter, task=task))

    async def _run_replica(
        self, number: int, ready: asyncio.Future[tuple[StatusStore, StatusReporter]]
    ) -> None:
        settings = self.settings
        # Reading and connecting are measured by the machine's clock, which must not matter.
        timeouts = replace(timeouts_of(settings.forge_call_seconds), connect=90.0, read=90.0)
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(open_statuses(settings.forge_inbox_url))
            reporter = StatusReporter(
                store=store,
                remotes={
                    origin.value: await stack.enter_async_context(
                        Remote.open(
                            ForgeAccess(name=origin.value, origin=origin, url=forge.url, token=forge.token),
                            timeouts=timeouts,
                            clock=self.time,
                            timer=self.calls.timeout,
                        )
                    )
                    for origin, forge in self.forges.items()
                },
                broker=await stack.enter_async_context(open_broker(settings.amqp_url, name=f"test-{number}")),
                topology=STATUSES.topology(QueueType(settings.amqp_queue_type)),
                metrics=Metrics(),
                rng=random.Random(number),
                rules=self.rules,
                clock=self.time,
                timer=self.poll_timer.timeout,
            )
            ready.set_result((store, reporter))
            await reporter.run()

    async def keep(self, statuses: Sequence[ReportableStatus]) -> None:
        """Store these statuses by either process; the reporter has seen them on return."""
        chosen = self.replicas[len(self.stored) % len(self.replicas)]
        polls = self.poll_timer.begun
        stored = await chosen.store.keep(statuses, self.time.now)
        assert set(stored) == {StatusKeepResult.WANTED}
        self.stored += [(self.time.now, status) for status in statuses]
        await wait_until(lambda: self.poll_timer.begun >= polls + len(self.forges))

    async def kill_at_the_next_call(self) -> None:
        """Kill the leader during its next call; the other process continues."""
        self.killing = True

    async def _kill_the_leader(self) -> None:
        self.killing = False
        victim = next(replica for replica in self.replicas if replica.reporter.is_leader)
        assert under_way()
        self.replicas.remove(victim)
        await end(victim)
        self.abandoned |= self.delays.waits
        (survivor,) = self.replicas
        await wait_until(lambda: survivor.reporter.is_leader)

    async def ask_to_wait(self, status: int, seconds: float) -> None:
        """Make each forge answer its next call with this retry time in seconds."""
        self.asks = dict.fromkeys(self.forges, (status, seconds))


def under_way() -> list[asyncio.Task[Any]]:
    """The calls that were begun and whose end is not in the store yet."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("status ")]


async def end(replica: Replica) -> None:
    replica.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await replica.task


def key_of(request: Request) -> Key:
    name = request.body.get("context") or request.body["name"]
    return "river/app", request.path.rpartition("/")[2], name


def received_calls(forge: ForgeApi, key: Key) -> list[ReceivedCall]:
    """The calls about a context, in the order in which they arrived."""
    found = [
        ReceivedCall(at=request.at, status=status, reported=request.body["description"])
        for request, status in forge.calls
        if key_of(request) == key
    ]
    # A call without a caller was answered late, and arrived before the new leader called at that same moment.
    return sorted(found, key=lambda call: (call.at, call.status != UNHEARD))


@asynccontextmanager
async def open_forges(settings: ForgeSettings) -> AsyncIterator[ForgeSimulation]:
    time = FakeTime()
    simulation = ForgeSimulation(
        settings=settings, time=time, poll_timer=time.timer(), calls=time.timer(), delays=time.timer()
    )
    async with AsyncExitStack() as stack:
        for origin in FORGE_STATES:
            forge = await stack.enter_async_context(
                forge_api(origin, clock=time, sleep=simulation.delays.sleep)
            )
            forge.behave(partial(simulation.behave, origin))
            forge.window = TIGHT[origin]
            simulation.forges[origin] = forge
        await simulation.start()
        await wait_until(lambda: simulation.replicas[0].reporter.is_leader)
        await simulation.start()
        try:
            yield simulation
        finally:
            for replica in simulation.replicas:
                await end(replica)
