"""After ten minutes of 500s, every commit still shows how its jobs ended.

The time is fake, so that all of it takes seconds; `tests/fake_time.py` explains it.
"""

import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Final

import pytest

from solstice_common.broker import open_broker
from solstice_common.messages import JobStatusV1, Source
from solstice_common.topology import STATUSES
from solstice_forge.remote.http import DIALECTS
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.call_endings import RetryRules
from solstice_forge.statuses.reportable_status import ReportableStatus
from tests.integration.forge.conftest import MakeSettings
from tests.integration.forge.four_forges import (
    CALM,
    GONE,
    OUTAGE,
    STORM,
    TROUBLES,
    UNHEARD,
    WIDE,
    ForgeSimulation,
    ReceivedCall,
    open_forges,
    received_calls,
)
from tests.servers.forge_api import ForgeApi, Key
from tests.statuses import FORGE_STATES, reportable_status
from tests.traffic import drain

pytestmark = pytest.mark.timeout(300)  # it may have to start a PostgreSQL first

COMMITS: Final = 3
EARLY: Final = "solstice"
"""The context whose job ends before the ten minutes; of the first commit it is run again in them."""
CONTEXTS: Final = (EARLY, "solstice/build", "solstice/test")
ENDS: Final = ("succeeded", "failed", "errored", "cancelled", "timed_out")
AFTER: Final = 300.0
"""How long it goes on after the ten minutes."""
TRIFLE: Final = 0.001

StatusHistory = list[tuple[float, ReportableStatus]]
"""The stored statuses of one context, with their moments, in order."""
Step = Callable[[], Awaitable[None]]


def status_histories(
    rng: random.Random, simulation: ForgeSimulation
) -> Iterator[tuple[float, ReportableStatus]]:
    """The statuses to store, with their moments."""
    for origin, number, context in itertools.product(FORGE_STATES, range(COMMITS), CONTEXTS):
        states = ["waiting", "running"]
        moments = [rng.uniform(0, 20), rng.uniform(20, 60)]
        if context == EARLY:
            states += [rng.choice(ENDS[1:])]
            moments += [rng.uniform(60, 110)]
        if context != EARLY or number == 0:
            # At once, so that all of them are reported for the whole ten minutes; and then some more. GitLab
            # does not take the state again that it shows, so a second run ends as the first cannot have
            # ended.
            states += [
                "backoff",
                "running",
                "backoff",
                "running",
                ENDS[0] if context == EARLY else rng.choice(ENDS),
            ]
            moments += [STORM + CALM + each for each in [0.0, *sorted(rng.uniform(5, 590) for _ in range(4))]]
        for sequence, (state, moment) in enumerate(zip(states, moments, strict=True), start=1):
            run = number + 1 + (100 if context == EARLY and sequence > 3 else 0)
            yield (
                simulation.begun + moment,
                reportable_status(
                    state,
                    source=origin.value,
                    run=run,
                    sequence=sequence,
                    commit_sha=f"{number:040x}",
                    context=context,
                    description=f"{run:03}-{sequence}: {state}",
                ),
            )
    for origin, (context, moment) in itertools.product(
        FORGE_STATES, [("early", 30.0), ("late", STORM + CALM + 250)]
    ):
        yield (
            simulation.begun + moment,
            reportable_status("failed", source=origin.value, run=9999, commit_sha=GONE, context=context),
        )


async def run_scenario(simulation: ForgeSimulation) -> None:
    """Run everything, from the first fault to long after the last."""
    plan = sorted(status_histories(random.Random(20261122), simulation), key=itemgetter(0))
    begins = simulation.outage_begins
    moments: list[tuple[float, Step]] = [
        (begins - 1.0, partial(everything_is_shown, simulation)),
        (begins + 160.0, partial(simulation.ask_to_wait, 503, 45.0)),
        (begins + 300.0, simulation.kill_at_the_next_call),
        (begins + 400.0, partial(simulation.ask_to_wait, 429, 30.0)),
    ]
    for moment, group in itertools.groupby(plan, key=itemgetter(0)):
        moments.append((moment, partial(simulation.keep, [status for _, status in group])))
    for moment, step in sorted(moments, key=itemgetter(0)):
        await simulation.advance_until(moment)
        await step()
    await simulation.advance_until(simulation.outage_ends + AFTER)


async def everything_is_shown(simulation: ForgeSimulation) -> None:
    """Nothing is pending after the calm; from now on the usual limits hold."""
    assert await simulation.replicas[0].store.pending() == 0
    for origin, forge in simulation.forges.items():
        forge.window = WIDE[origin]


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, make_settings: MakeSettings) -> ForgeSettings:
    if request.param == "sqlite":
        return make_settings()
    return make_settings(forge_inbox_url=request.getfixturevalue("postgresql_database").url)


async def test_ten_minutes_of_500s_cost_time_and_nothing_else(settings: ForgeSettings) -> None:
    async with open_forges(settings) as simulation:
        await run_scenario(simulation)
        (survivor,) = simulation.replicas
        assert await survivor.store.pending() == 0
        async with open_broker(settings.amqp_url, name="test") as broker:
            dead_letters = await drain(broker, STATUSES.dlq, 2 * len(FORGE_STATES))
            depth = await broker.depth(STATUSES.dlq)
    # Only what the forges refused for good was given up.
    assert [dead_letter.headers["x-solstice-reason"] for dead_letter in dead_letters] == [
        "not_found"
    ] * 2 * len(FORGE_STATES)
    assert depth is not None
    assert depth.ready == 0
    assert len(simulation.dealt) == len(TROUBLES)
    for origin, forge in simulation.forges.items():
        assert forge.broken == 0, f"{origin}: a rate limit was broken"
        histories = contexts(simulation, origin)
        assert len(histories) == COMMITS * len(CONTEXTS)
        for key, history in histories.items():
            assert_shows_its_end(forge, key, history)
            assert_newest_was_reported(forge, key, history)
            assert_called_in_time(simulation, origin, key, history)
        assert_waits_are_respected(simulation, origin)
        assert_not_hammered(simulation, origin)
        assert_soon_noticed(simulation, origin)


def contexts(simulation: ForgeSimulation, origin: Source) -> dict[Key, StatusHistory]:
    """All of a forge but what it does not know."""
    found: dict[Key, StatusHistory] = {}
    for moment, status in simulation.stored:
        if status.source_name == origin.value and status.commit_sha != GONE:
            key = (status.repository, status.commit_sha, status.context)
            found.setdefault(key, []).append((moment, status))
    return found


def in_outage(simulation: ForgeSimulation, origin: Source) -> dict[Key, list[ReceivedCall]]:
    """The calls of the outage, for contexts with a status to report."""
    return {
        key: [
            call
            for call in received_calls(simulation.forges[origin], key)
            if simulation.outage_begins <= call.at < simulation.outage_ends
        ]
        for key, history in contexts(simulation, origin).items()
        if history[-1][0] >= simulation.outage_begins
    }


def described(status: ReportableStatus) -> str:
    """Our statuses differ by their descriptions, whose order is that of the statuses."""
    return JobStatusV1.decode(status.body).description or ""


def assert_shows_its_end(forge: ForgeApi, key: Key, history: StatusHistory) -> None:
    end_of = history[-1][1]
    shown = [each["description"] for each in forge.history[key]]
    assert forge.shown[key]["state"] == FORGE_STATES[forge.origin][end_of.state], (
        f"{forge.origin} {key}: {shown}"
    )
    assert shown[-1] == described(end_of)
    assert shown == sorted(shown), f"{forge.origin} {key} went back"


def assert_newest_was_reported(forge: ForgeApi, key: Key, history: StatusHistory) -> None:
    """Each call reports the newest status of its time; after an outage the last alone."""
    for call in received_calls(forge, key):
        before = [described(status) for moment, status in history if moment < call.at]
        then = [described(status) for moment, status in history if moment == call.at]
        assert call.reported in [*before[-1:], *then], f"{forge.origin} {key}: {call}"


def assert_called_in_time(
    simulation: ForgeSimulation, origin: Source, key: Key, history: StatusHistory
) -> None:
    """From the first failure to the first success, each retry comes once and in time."""
    calls = [
        call for call in received_calls(simulation.forges[origin], key) if call.at >= simulation.outage_begins
    ]
    if history[-1][0] < simulation.outage_begins:
        assert calls == []
        return
    *failed, reported = calls
    assert failed[0].at == simulation.outage_begins
    assert reported.reported == described(history[-1][1])
    assert reported.at >= simulation.outage_ends
    # A status that comes during the outage waits for the next try.
    stored = {moment for moment, _ in history}
    assert [call for call in failed[1:] if call.at in stored] == [], f"{origin} {key}: {calls}"
    failures = 0
    for call, following in itertools.pairwise(calls):
        assert call.status in {500, 503, 429, UNHEARD}, f"{origin} {key}: {call}"
        latest = call.at
        if call.status == UNHEARD:
            # Another status may have to wait until this one can no longer arrive.
            latest += simulation.rules.horizon
        elif call.status != 429:
            latest += min(simulation.rules.last_retry, simulation.rules.first_retry * 2.0**failures)
            failures += 1
        for pause in simulation.pauses:
            if pause.origin is origin and pause.since <= latest < pause.until:
                latest = pause.until
        assert following.at <= latest + TRIFLE, f"{origin} {key}: {following} is late after {call}"


def assert_waits_are_respected(simulation: ForgeSimulation, origin: Source) -> None:
    """To the second: not before, and after a limit not later."""
    moments = [request.at for request, _ in simulation.forges[origin].calls]
    expected, limited = [pause for pause in simulation.pauses if pause.origin is origin]
    for pause in (expected, limited):
        assert [moment for moment in moments if pause.since < moment < pause.until] == []
    assert limited.until in moments


def assert_not_hammered(simulation: ForgeSimulation, origin: Source) -> None:
    counts = [len(calls) for calls in in_outage(simulation, origin).values()]
    usual = mean_calls(simulation.rules, OUTAGE)
    assert len(counts) == COMMITS * len(CONTEXTS) - (COMMITS - 1)
    assert max(counts) <= 2 * usual
    # An unknown commit is an answer: the forge may be back, and waiting statuses try once.
    assert sum(counts) <= (1.3 * usual + 1) * len(counts)


def mean_calls(rules: RetryRules, seconds: float) -> float:
    """The number of calls of a status that fails so long, with mean waits."""
    calls, at = 1, 0.0
    while True:
        at += min(rules.last_retry, rules.first_retry * 2.0 ** (calls - 1)) / 2
        if at >= seconds:
            return calls
        calls += 1


def assert_soon_noticed(simulation: ForgeSimulation, origin: Source) -> None:
    """One call tries within the longest wait; all others follow at our pace."""
    forge = simulation.forges[origin]
    reported = [
        request.at
        for request, status in forge.calls
        if request.at >= simulation.outage_ends and status in {200, 201}
    ]
    assert len(reported) == len(in_outage(simulation, origin))
    assert min(reported) <= simulation.outage_ends + simulation.rules.last_retry
    assert max(reported) - min(reported) <= len(reported) * DIALECTS[origin].PACE.interval_seconds
