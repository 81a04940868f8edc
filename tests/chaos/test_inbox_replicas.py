"""Two forge-integrations on one PostgreSQL inbox, killed in turn, publish every push.

Each push is stored once.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import httpx2

from solstice_common.broker import open_broker
from solstice_common.settings import BrokerSettings
from solstice_forge.inbox import open_inbox
from tests.integration.forge.pushes import SECRET, number_of, push, received
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.orchestrator import SharedFiles
from tests.servers.postgresql import ScratchDatabase

PUSHES = 60


async def send(client: httpx2.AsyncClient, replicas: list[ForgeProcess], number: int) -> None:
    """Send both hooks of one push, each to a replica, until it is stored."""
    for hook in range(2):
        body, headers = push(number, delivery_id=f"hook-{hook}-push-{number}")
        for turn in range(1000):
            replica = replicas[(number + hook + turn) % len(replicas)]
            try:
                answer = await client.post(f"{replica.url}/webhooks/forgejo", content=body, headers=headers)
            except httpx2.TransportError:
                continue
            if answer.is_success:
                break
            assert answer.status_code == 503, answer.text


async def test_every_push_is_kept_once_and_published_while_replicas_are_killed_in_turn(
    postgresql_database: ScratchDatabase, tmp_path: Path
) -> None:
    shared_files = SharedFiles(directory=tmp_path)
    settings = {"FORGE_INBOX_URL": postgresql_database.url, "FORGEJO_WEBHOOK_SECRET": SECRET}
    broker_settings = BrokerSettings(amqp_url=shared_files.broker_url)
    with ExitStack() as processes:

        def start() -> ForgeProcess:
            return processes.enter_context(forge_integration(shared_files, **settings))

        replicas = [start(), start()]
        async with httpx2.AsyncClient(timeout=60) as client:
            for number in range(1, PUSHES + 1):
                await send(client, replicas, number)
                if number % 20 == 10:
                    # Either of the two may be the relay: each is killed in turn, and another takes its place.
                    replicas.pop(0).kill()
                    replicas.append(await asyncio.to_thread(start))
            async with open_broker(shared_files.broker_url, name="test") as broker:
                requests = await received(broker, broker_settings, PUSHES, distinct=True)
        assert {number_of(request) for request in requests} == set(range(1, PUSHES + 1))
        assert len({request.idempotency_key for request in requests}) == PUSHES
        async with open_inbox(postgresql_database.url) as inbox:
            async with asyncio.timeout(60):
                while await inbox.backlog():  # noqa: ASYNC110  a mark sends no notification
                    await asyncio.sleep(0.05)
        stored = postgresql_database.query("SELECT count(*) FROM inbox_requests")
        assert [tuple(row) for row in stored] == [(PUSHES,)]
        # One waits for the leader lock, and still ends at once.
        for replica in replicas:
            replica.terminate()
        assert [await asyncio.to_thread(replica.ended) for replica in replicas] == [0, 0]
