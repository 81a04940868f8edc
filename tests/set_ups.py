"""Set-ups for backups: the databases of both services, filled, on SQLite or PostgreSQL."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec.structs import replace as replaced

from solstice_cli.backup.making import make_backup
from solstice_cli.backup.manifest import BackupManifest
from solstice_cli.backup.parts import BackupPart, BackupSettings, PartDatabase, databases
from solstice_cli.backup.restoring import RestoreResult, restore_backup
from solstice_common.broker import Message, open_broker
from solstice_common.cli.options import load_settings
from solstice_common.messages import JobRequestV1, derive_request_id
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_forge.inbox import open_inbox
from solstice_forge.inbox.log import DeliveryFilter
from solstice_forge.inbox.protocol import NewDelivery
from solstice_forge.statuses.status_service import open_statuses
from solstice_orchestrator.store import open_store
from tests.builders import job_request
from tests.inboxes import NOON, delivery
from tests.populated_store import PopulatedStore, populate
from tests.statuses import reportable_status
from tests.stores import ManualClock

JOBS: Final = jobs_route(BrokerSettings())
KNOWN: Final = derive_request_id("known")
UNKNOWN: Final = derive_request_id("unknown")
WAITING: Final = derive_request_id("waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """The URLs of one set-up's databases."""

    folder: Path
    server: str = ""
    """A PostgreSQL for the store and the inbox; empty: files."""

    @property
    def settings(self) -> BackupSettings:
        files = f"sqlite:///{self.folder}"
        return load_settings(
            BackupSettings,
            amqp_url=f"{files}/broker.sqlite",
            database_url=self.server or f"{files}/store.db",
            forge_inbox_url=self.server or f"{files}/inbox.db",
        )

    def databases(self, *only: BackupPart) -> Sequence[PartDatabase]:
        return databases(self.settings, only or list(BackupPart))

    def moved(self, folder: str, server: str = "") -> "SetUp":
        """Another set-up, empty as yet."""
        return replace(self, folder=self.folder.parent / folder, server=server)


async def fill(set_up: SetUp, clock: ManualClock) -> PopulatedStore:
    """Fill all databases.

    The inbox has two published requests, of which the store knows one, and one that waits.
    """
    set_up.folder.mkdir(exist_ok=True)
    settings = set_up.settings
    async with open_store(settings.database_url, clock=clock) as store:
        populated = await populate(store, clock)
        await store.admit([job_request(request_id=KNOWN)])
    async with open_inbox(settings.forge_inbox_url) as inbox, inbox.relaying():
        for name in (KNOWN, UNKNOWN):
            await inbox.keep(asking(name))
        await inbox.published([each.row_id for each in await inbox.pending(9)])
        await inbox.keep(asking(WAITING))
        await inbox.keep(delivery("ping", asks=False))
    async with open_statuses(settings.forge_inbox_url) as statuses:
        await statuses.keep([reportable_status("running")], NOON)
    async with open_broker(settings.amqp_url, name="test") as broker:
        await broker.ready(60)
        await broker.declare(full_topology(BrokerSettings()))
        message = Message(
            exchange=JOBS.exchange,
            routing_key=JOBS.routing_key,
            body=job_request().encode(),
            type=JobRequestV1.VERSION,
        )
        assert all(each.confirmed for each in await broker.publish([message]))
    return populated


def asking(request_id: str, received_at: float | None = None) -> NewDelivery:
    """A delivery that asks for this, a moment ago."""
    body = job_request(request_id=request_id).encode()
    received_at = received_at or time.time() - 60
    return replaced(delivery(request_id, received_at=received_at), request_id=request_id, request=body)


async def seen(set_up: SetUp, clock: ManualClock) -> list[object]:
    """What the services see in these databases."""
    settings, found = set_up.settings, list[object]()
    async with open_store(settings.database_url, clock=clock) as store:
        found += [await store.counts(), [row.body for row in await store.outbox(1000)]]
        for run in (await store.runs(limit=100)).runs:
            found.append(run)
            for view in await store.jobs(run_id=run.run_id, limit=100):
                page = await store.log(view.job_id)
                found += [view, await store.attempts(view.job_id), page and tuple(page.chunks)]
        for schedule in await store.schedule_store.schedules(limit=100):
            found += [schedule, await store.schedule_store.ticks(schedule.schedule_id, 100)]
    async with open_inbox(settings.forge_inbox_url) as inbox:
        found.append([each.row_id for each in (await inbox.entries(DeliveryFilter(), limit=100)).entries])
    async with open_statuses(settings.forge_inbox_url) as statuses:
        found.append(await statuses.pending())
    async with open_broker(settings.amqp_url, name="test") as broker:
        depth = await broker.depth(JOBS.queue)
        found.append(depth and depth.ready)
    return found


async def to_publish(set_up: SetUp) -> set[str]:
    """The requests that the relay would publish."""
    async with open_inbox(set_up.settings.forge_inbox_url) as inbox, inbox.relaying():
        return {each.request_id for each in await inbox.pending(100)}


async def back_up(set_up: SetUp, file: Path, *only: BackupPart) -> BackupManifest:
    return await make_backup(file, set_up.databases(*only))


async def restored(
    set_up: SetUp, file: Path, *only: BackupPart, living_inbox: PartDatabase | None = None
) -> RestoreResult:
    return await restore_backup(
        file, set_up.databases(*only), living_inbox=living_inbox, republish_seconds=3600
    )
