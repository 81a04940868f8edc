"""Moves statuses from the broker through the store to the forges, in one process."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from solstice_common.broker.protocol import Broker
from solstice_common.settings import is_postgresql
from solstice_common.storage.sqlite_place import MemoryPlace, SqlitePlace, sqlite_place
from solstice_common.topology import STATUSES, QueueType
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import Remote
from solstice_forge.settings import ForgeSettings
from solstice_forge.statuses.call_endings import FIRST_RETRY_SECONDS, RetryRules
from solstice_forge.statuses.intake import StatusIntake
from solstice_forge.statuses.protocol import StatusStore
from solstice_forge.statuses.reporter import StatusReporter
from solstice_forge.statuses.source_reporter import not_traced
from solstice_forge.statuses.status_spans import StatusSpans


def rules_of(settings: ForgeSettings) -> RetryRules:
    """Return the times of retries from the settings."""
    return RetryRules(
        first_retry=min(FIRST_RETRY_SECONDS, settings.forge_retry_seconds),
        last_retry=settings.forge_retry_seconds,
        give_up=settings.forge_give_up_hours * 3600.0,
        horizon=2 * settings.forge_call_seconds,
    )


def statuses_place(inbox_url: str) -> SqlitePlace:
    """Return where the statuses are: beside the inbox."""
    place = sqlite_place(inbox_url, "statuses")
    return place if isinstance(place, MemoryPlace) else place.with_name(place.name + ".statuses")


@asynccontextmanager
async def open_statuses(inbox_url: str) -> AsyncIterator[StatusStore]:
    """Open the store of statuses that goes with an inbox.

    Raises ConfigurationError, StoreUnavailable, SchemaTooNew.
    """
    # Imported here: a process that uses one store does not load the other's client library.
    if is_postgresql(inbox_url):
        from solstice_forge.statuses.postgresql import PostgreSQLStatuses  # noqa: PLC0415

        async with PostgreSQLStatuses.open(inbox_url) as shared:
            yield shared
    else:
        from solstice_forge.statuses.sqlite import SqliteStatuses  # noqa: PLC0415

        async with SqliteStatuses.open(statuses_place(inbox_url)) as store:
            yield store


@asynccontextmanager
async def reporting(
    settings: ForgeSettings,
    *,
    sources: Collection[str],
    remotes: Mapping[str, Remote],
    broker: Broker,
    metrics: Metrics,
    spans: StatusSpans | None = None,
) -> AsyncIterator[StatusStore | None]:
    """Send statuses to the forges until left; give the store, or None.

    `sources` are all configured sources, `remotes` the forges that we may call. `spans` takes the spans of statuses; None
    while nothing is traced.

    At the end no new calls begin, and running calls have `forge_grace_seconds` to finish. Without a forge
    that we may call, this process takes no statuses from the broker: other processes may do it. Raises
    TopologyMismatch.
    """
    if not remotes:
        yield None
        return
    topology = STATUSES.topology(QueueType(settings.amqp_queue_type))
    rng = random.Random()  # noqa: S311  jitter, not a secret
    async with open_statuses(settings.forge_inbox_url) as store, asyncio.TaskGroup() as tasks:
        reporter = StatusReporter(
            store=store,
            remotes=remotes,
            broker=broker,
            topology=topology,
            metrics=metrics,
            rng=rng,
            rules=rules_of(settings),
            reported=not_traced if spans is None else spans.reported,
        )
        intake = StatusIntake(
            broker=broker,
            store=store,
            has_remote={name: name in remotes for name in sources},
            metrics=metrics,
            rng=rng,
        )
        taking = tasks.create_task(
            intake.run(STATUSES, topology, prefetch=settings.amqp_prefetch), name="statuses-intake"
        )
        reporting_task = tasks.create_task(reporter.run(), name="status-reporter")
        yield store
        taking.cancel()
        reporter.finish()
        if reporter.is_leader:
            await asyncio.wait({reporting_task}, timeout=settings.forge_grace_seconds)
        reporting_task.cancel()
