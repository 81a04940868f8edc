"""Forges fail and two replicas are killed: every commit still shows how its jobs ended."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from solstice_common.broker import Broker, Message
from solstice_common.messages import JobStatusV1, Source
from solstice_common.messages.states import FINAL
from solstice_common.topology import STATUSES, QueueType
from tests.servers.forge_api import (
    Delayed,
    ForgeApi,
    Reply,
    Request,
    Reset,
    Trouble,
    Truncated,
    Window,
    forge_api,
)
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.orchestrator import SharedFiles
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.statuses import FORGE_STATES, job_status
from tests.traffic import connected, drain

COMMITS: Final = 4
"""Of each forge; each has the contexts below, and one of them is asked for twice."""
CONTEXTS: Final = ("solstice", "solstice/build", "solstice/test")
ENDS: Final = ("succeeded", "failed", "errored", "cancelled", "timed_out")
GONE: Final = "f" * 40
"""A commit that no forge knows."""
CALL_SECONDS: Final = 3.0
SLOW_SECONDS: Final = 3.3
"""Longer than we wait for an answer, shorter than an unanswered call is reckoned with."""
WAIT_SECONDS: Final = 150.0
TROUBLES: Final[Sequence[Trouble | None]] = (
    None,
    Reply(status=500, document={"message": "Server Error"}),
    Reply(status=502),
    Reply(status=429, headers={"retry-after": "1"}),
    Reset(),
    Reset(carried_out=True),
    Truncated(),
    Delayed(seconds=SLOW_SECONDS),
)
WEIGHTS: Final = (40, 20, 10, 5, 10, 5, 5, 5)
NOT_OVER: Final = {"pending", "running"}

pytestmark = [
    pytest.mark.timeout(300),  # it may have to start a RabbitMQ first
    # The faults are the forges'; they are the same for every broker.
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
]


Ends = Mapping[Source, Mapping[tuple[str, str, str], str]]


async def wait_until(
    what: str, fact: Callable[[], bool], forges: Mapping[Source, ForgeApi], ends: Ends = MappingProxyType({})
) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not fact():
        late = time.monotonic() > deadline
        assert not late, f"not within {WAIT_SECONDS:g} s: {what}: {wrong_statuses(forges, ends)}"
        await asyncio.sleep(0.05)


@dataclass(kw_only=True)
class ForgeTroubles:
    """The faults of the forges; none after the storm."""

    rng: random.Random
    storming: bool = True
    seen: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: Request) -> Trouble | None:
        if GONE in request.path:
            return Reply(status=404, document={"message": "Not Found"})
        if not self.storming:
            return None
        kind = self.rng.choices(TROUBLES, WEIGHTS)[0]
        self.seen[type(kind).__name__] += 1
        return kind


@dataclass(kw_only=True)
class Replicas:
    """Two forge-integrations on one inbox, of which one is the leader."""

    shared_files: SharedFiles
    settings: Mapping[str, str]
    running: list[tuple[ForgeProcess, ExitStack]] = field(default_factory=list)

    async def start(self) -> None:
        stack = ExitStack()
        process = await asyncio.to_thread(
            stack.enter_context, forge_integration(self.shared_files, **self.settings)
        )
        self.running.append((process, stack))

    async def replace(self) -> None:
        """Kill the one that has run for longest, and start another."""
        process, stack = self.running.pop(0)
        process.kill()
        await asyncio.to_thread(stack.close)
        await self.start()

    async def close(self) -> None:
        for _, stack in self.running:
            await asyncio.to_thread(stack.close)


def sources_file(directory: Path, forges: Mapping[Source, ForgeApi]) -> Path:
    path = directory / "sources.toml"
    path.write_text(
        "\n".join(
            f'[sources.{origin.value}]\nforge = "{origin.value}"\nurl = "{forge.url}"\n'
            f'secrets = ["plain:an invented secret"]\ntoken = "plain:{forge.token}"\n'
            for origin, forge in forges.items()
        )
    )
    return path


def status_histories(rng: random.Random, origin: Source) -> Iterator[list[JobStatusV1]]:
    """The statuses of each context in order; some commits have a second run."""
    for number, context in itertools.product(range(COMMITS), CONTEXTS):
        runs = 2 if (number + len(context)) % 5 == 0 else 1
        reported: list[JobStatusV1] = []
        for run in range(1, runs + 1):
            states = ["waiting", "running", rng.choice(ENDS)]
            reported += [
                job_status(
                    state,
                    source=origin.value,
                    run=run * 100 + number,
                    sequence=sequence,
                    commit_sha=f"{number:040x}",
                    context=context,
                )
                for sequence, state in enumerate(states, start=1)
            ]
        yield reported


def shuffled(rng: random.Random, reported: Sequence[Sequence[JobStatusV1]]) -> list[JobStatusV1]:
    """All statuses, each context in order and the contexts mixed; some repeated, some late."""
    waiting = [list(each) for each in reported]
    mixed: list[JobStatusV1] = []
    while waiting:
        chosen = rng.choice(waiting)
        mixed.append(chosen.pop(0))
        if rng.random() < 0.2:
            mixed.append(rng.choice(mixed))
        if not chosen:
            waiting.remove(chosen)
    return mixed


async def publish(broker: Broker, statuses: Sequence[JobStatusV1]) -> None:
    outcomes = await broker.publish(
        [
            Message(
                exchange=STATUSES.exchange,
                routing_key=STATUSES.routing_key,
                body=status.encode(),
                type=STATUSES.routing_key,
                correlation_id=status.request_id,
            )
            for status in statuses
        ]
    )
    assert all(outcome.confirmed for outcome in outcomes)


@asynccontextmanager
async def forges_in(weather: ForgeTroubles) -> AsyncIterator[dict[Source, ForgeApi]]:
    async with AsyncExitStack() as stack:
        forges = {origin: await stack.enter_async_context(forge_api(origin)) for origin in FORGE_STATES}
        for forge in forges.values():
            forge.behave(weather)
        forges[Source.GITHUB].window = Window(calls=24, seconds=3)
        forges[Source.GITLAB].window = Window(calls=40, seconds=3, status=429, prefix="ratelimit")
        yield forges


@contextmanager
def inbox_url(kind: str, directory: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'inbox.db'}"
    else:
        database: ScratchDatabase = request.getfixturevalue("postgresql_database")
        yield database.url


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_after_the_storm_every_commit_shows_how_its_jobs_ended(
    kind: str, rabbitmq_vhost: Vhost, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(20261120)
    weather = ForgeTroubles(rng=rng)
    reported = {origin: list(status_histories(rng, origin)) for origin in FORGE_STATES}
    mixed = shuffled(rng, [each for of_forge in reported.values() for each in of_forge])
    lost = job_status("failed", source="forgejo", run=9999, commit_sha=GONE)
    with inbox_url(kind, tmp_path, request) as url:
        async with (
            forges_in(weather) as forges,
            connected(rabbitmq_vhost.url, topology=STATUSES.topology(QueueType.QUORUM)) as broker,
        ):
            replicas = Replicas(
                shared_files=SharedFiles(directory=tmp_path),
                settings={
                    "AMQP_URL": rabbitmq_vhost.url,
                    "FORGE_CONFIG": str(sources_file(tmp_path, forges)),
                    "FORGE_INBOX_URL": url,
                    "FORGE_CALL_SECONDS": str(CALL_SECONDS),
                    "FORGE_RETRY_SECONDS": "1",
                },
            )
            try:
                await replicas.start()
                await replicas.start()
                await publish(broker, [lost])
                for part in parts(mixed, 40):
                    goal = calls_of(forges) + 10
                    await publish(broker, list(part))
                    await wait_until("the forges are called", partial(has_calls, forges, goal), forges)
                    await replicas.replace()
                weather.storming = False
                ends = {
                    origin: {
                        ("river/app", each[-1].commit_sha, each[-1].context): FORGE_STATES[origin][
                            each[-1].state
                        ]
                        for each in of_forge
                    }
                    for origin, of_forge in reported.items()
                }
                await wait_until(
                    "every commit shows its end", lambda: not wrong_statuses(forges, ends), forges, ends
                )
                (dead_letter,) = await drain(broker, STATUSES.dlq, 1)
            finally:
                await replicas.close()
    assert dead_letter.body == lost.encode()
    assert dead_letter.headers["x-solstice-reason"] == "not_found"
    assert weather.seen["Reply"]
    assert weather.seen["Reset"]
    for origin, forge in forges.items():
        assert forge.broken == 0, f"{origin}: a rate limit was broken"
        for key, history in forge.history.items():
            assert_no_way_back(origin, key, history, reported[origin])


def calls_of(forges: Mapping[Source, ForgeApi]) -> int:
    return sum(len(forge.calls) for forge in forges.values())


def has_calls(forges: Mapping[Source, ForgeApi], goal: int) -> bool:
    return calls_of(forges) >= goal


def wrong_statuses(forges: Mapping[Source, ForgeApi], ends: Ends) -> dict[str, list[str]]:
    """The shown statuses of commits that do not show how their jobs ended."""
    return {
        f"{origin} {key}": [str(each["state"]) for each in forges[origin].history.get(key, [])]
        for origin, of_forge in ends.items()
        for key, end in of_forge.items()
        if forges[origin].shown.get(key, {}).get("state") != end
    }


def parts(statuses: Sequence[JobStatusV1], size: int) -> Iterator[Sequence[JobStatusV1]]:
    for start in range(0, len(statuses), size):
        yield statuses[start : start + size]


def assert_no_way_back(
    origin: Source,
    key: tuple[str, str, str],
    history: Sequence[Mapping[str, object]],
    reported: Sequence[Sequence[JobStatusV1]],
) -> None:
    """No commit shows an unfinished status after a final one, unless a later run began."""
    (life,) = [each for each in reported if (each[0].commit_sha, each[0].context) == key[1:]]
    runs = len({status.run_id for status in life})
    states = [str(each["state"]) for each in history]
    returns = sum(
        before not in NOT_OVER and after in NOT_OVER for before, after in itertools.pairwise(states)
    )
    assert returns < runs, f"{origin} {key}: {states}"
    assert {status.state for status in life} & FINAL
