"""An installation of the previous release is upgraded without losing or repeating anything."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.messages import JobRequestV1, Source, derive_request_id
from solstice_common.storage.migrations import migrations_of
from solstice_orchestrator.store import JobStore, open_store
from tests.polling import wait_until_true
from tests.releases.databases import load_file, load_server
from tests.releases.fill_release import JOBS, REPOSITORY, request, seen
from tests.releases.lighthouse import COMMIT, lighthouse_proxy, make_lighthouse
from tests.releases.record import RECORDED
from tests.servers.forge_api import Key, forge_api
from tests.servers.forge_integration import forge_integration
from tests.servers.forks import run_command
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.postgresql import PostgreSQLServer

SCHEMA: Final = 29
"""The version of the store's schema in the previous release."""
IN_NO_STORE: Final = ("in the queue", "not published")
"""Requests that the previous release had accepted, but not stored."""
UNPLANNED: Final = ("delayed", "planning", "pull 8, push 2", "asked afterwards", *IN_NO_STORE)
"""Requests that the previous release had planned no job for."""
ENDS: Final = {
    "ended": "failed",
    "timed out": "timed_out",
    "errored": "errored",
    "cancelled": "cancelled",
    "running": "cancelled",
    "backoff": "succeeded",
    "waiting": "succeeded",
    "approval": "waiting",
    **dict.fromkeys(UNPLANNED, "succeeded"),
}
"""How each run ends; one waits for a person."""
SUPERSEDED: Final = "pull 8, push 1"
CONTEXTS: Final = {(REPOSITORY, COMMIT, context) for context in ("solstice/old", "solstice/planned")}
"""Statuses that the forge shows in the end, one of which the previous release had not reported yet."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The databases that the previous release left, and the settings that both releases have."""

    kind: Literal["sqlite", "postgresql"]
    files: SharedFiles
    store_url: str
    inbox_url: str
    recorded: dict[str, Any]
    """What the previous release saw in its store."""

    @property
    def urls(self) -> dict[str, str]:
        return {"DATABASE_URL": self.store_url, "FORGE_INBOX_URL": self.inbox_url}

    def solstice(self, *words: str | Path, check: int = 0, **settings: str) -> dict[str, Any]:
        """What `solstice ... --json` answers with the settings of the services."""
        environment = {
            **self.files.environment(**self.urls),
            "SOLSTICE_HOME": str(self.files.directory / "home"),
            **settings,
        }
        done = run_command("solstice", *map(str, words), "--json", env=environment)
        assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture(params=["sqlite", "postgresql"])
async def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Installation:
    """The recorded databases in places of this test."""
    files = SharedFiles(directory=tmp_path / "machine")
    files.directory.mkdir()
    kind = request.param
    names = (
        ["broker.db"] if kind == "postgresql" else ["broker.db", "store.db", "inbox.db", "inbox.db.statuses"]
    )
    for name in names:
        load_file(RECORDED / f"{name}.sql", files.directory / name)
    store_url, inbox_url = files.database_url, f"sqlite:///{files.directory / 'inbox.db'}"
    if kind == "postgresql":
        store_url = inbox_url = request.getfixturevalue("postgresql_database").url
        await load_server((RECORDED / "postgresql.sql").read_text("utf-8"), store_url)
    recorded = json.loads((RECORDED / f"{kind}.json").read_text("utf-8"))
    return Installation(kind=kind, files=files, store_url=store_url, inbox_url=inbox_url, recorded=recorded)


@dataclass(frozen=True, kw_only=True)
class Running:
    """What can be asked while the new release runs on an installation."""

    shown: Mapping[Key, Mapping[str, Any]]
    """What the forge shows."""
    store: JobStore
    broker: Broker


@asynccontextmanager
async def upgraded(installation: Installation, root: Path) -> AsyncIterator[Running]:
    """The services of the new release on these databases, with a forge and its repository."""
    await asyncio.to_thread(make_lighthouse, root)
    async with AsyncExitStack() as stack:
        forge = await stack.enter_async_context(forge_api(Source.FORGEJO))
        config = root / "sources.toml"
        config.write_text(
            f'[sources.forgejo]\nforge = "forgejo"\nurl = "{forge.url}"\n'
            f'secrets = ["env:FORGEJO_WEBHOOK_SECRET"]\ntoken = "plain:{forge.token}"\n'
        )
        never_purged = {"RETENTION_DAYS": "0", "FORGE_RETENTION_DAYS": "0", "FORGE_MEMORY_DAYS": "0"}
        proxy = stack.enter_context(lighthouse_proxy(root))
        settings = {**installation.urls, **never_purged, "http_proxy": proxy, "GIT_PROTOCOLS": "http"}
        await asyncio.to_thread(
            stack.enter_context,
            forge_integration(
                installation.files,
                FORGE_CONFIG=str(config),
                FORGEJO_WEBHOOK_SECRET="invented",
                **installation.urls,
                **never_purged,
            ),
        )
        await asyncio.to_thread(stack.enter_context, orchestrator(installation.files, **settings))
        store = await stack.enter_async_context(open_store(installation.store_url))
        broker = await stack.enter_async_context(open_broker(installation.files.broker_url, name="test"))
        await broker.ready(60)
        yield Running(shown=forge.shown, store=store, broker=broker)


def attempts(run: dict[str, Any], job: str) -> list[tuple[int, str]]:
    """Number and state of each attempt at a job."""
    return [(number, state) for number, state, *_ in run["jobs"][job]["attempts"]]


def logged(run: dict[str, Any], job: str) -> str:
    """The lines of a job's last attempt."""
    return bytes.fromhex(run["jobs"][job]["log"]).decode()


async def publish(broker: Broker, *names: str) -> None:
    messages = [
        Message(
            exchange=JOBS.exchange,
            routing_key=JOBS.routing_key,
            body=request(name, COMMIT).encode(),
            type=JobRequestV1.VERSION,
        )
        for name in names
    ]
    assert all(each.confirmed for each in await broker.publish(messages))


@pytest.mark.timeout(240)
async def test_an_installation_goes_on_after_its_upgrade(installation: Installation, tmp_path: Path) -> None:
    recorded = installation.recorded["runs"]
    expected = {derive_request_id(name) for name in (*ENDS, SUPERSEDED)}
    async with upgraded(installation, tmp_path / "forge") as running:

        async def dead_letters_are_there() -> bool:
            # The one that was there, and that of the run whose retries had run out.
            depth = await running.broker.depth(JOBS.dlq)
            return depth is not None and depth.ready == 2

        async def all_ended() -> bool:
            ended = {key for key, run in (await seen(running.store))["runs"].items() if run["finished_at"]}
            return ended >= expected - {derive_request_id("approval")}

        async def statuses_are_shown() -> bool:
            return running.shown.keys() >= CONTEXTS

        # What the previous release took from the queue comes once more.
        await publish(running.broker, "ended", "running", "planning", "in the queue", "asked afterwards")
        await wait_until_true("all has ended", all_ended)
        await wait_until_true("dead letters are there", dead_letters_are_there)
        await wait_until_true("the forge shows them", statuses_are_shown)
        found = await seen(running.store)
    runs = found["runs"]
    assert runs.keys() == expected
    for key, run in recorded.items():
        if run["finished_at"]:
            assert runs[key] == run
        assert runs[key]["run_id"] == run["run_id"]
    named = {name: runs[derive_request_id(name)] for name in (*ENDS, SUPERSEDED)}
    # The second push of the change ends the first, unless that has ended before the second is planned.
    first_push = named.pop(SUPERSEDED)
    assert first_push["state"] in {"cancelled", "succeeded"}
    assert {name: run["state"] for name, run in named.items()} == ENDS
    assert attempts(named["running"], "build") == [(1, "errored"), (2, "succeeded")]
    assert logged(named["running"], "build").endswith("once more\n")
    assert attempts(named["running"], "unwanted") == [(1, "errored")]
    assert named["running"]["jobs"]["unwanted"]["state"] == "cancelled"
    assert attempts(named["running"], "test") == [(1, "succeeded")]
    assert attempts(named["backoff"], "flaky") == [(1, "errored"), (2, "succeeded")]
    assert attempts(named["waiting"], "build") == [(1, "succeeded")]
    assert attempts(named["approval"], "build") == []
    for name in UNPLANNED:
        assert attempts(named[name], "planned") == [(1, "succeeded")]
    assert found["schedules"] == installation.recorded["schedules"]


async def test_a_backup_of_before_the_upgrade_is_the_way_back(
    installation: Installation, postgresql: PostgreSQLServer, tmp_path: Path
) -> None:
    backup = tmp_path / "before.zip"
    with ExitStack() as stack:
        if installation.inbox_url == installation.store_url:
            empty = stack.enter_context(postgresql.database()).url
            back = replace(
                installation, files=SharedFiles(directory=tmp_path), store_url=empty, inbox_url=empty
            )
        else:
            places = SharedFiles(directory=tmp_path)
            back = replace(
                installation,
                files=places,
                store_url=places.database_url,
                inbox_url=f"sqlite:///{tmp_path / 'inbox.db'}",
            )
        before = installation.solstice("store", "check", check=1)
        ours = migrations_of(f"solstice_orchestrator.store.schema.{installation.kind}")
        assert before["pending"] == [step.version for step in ours if step.version > SCHEMA]
        installation.solstice("backup", backup)
        installation.solstice("store", "migrate")
        after = installation.solstice("store", "check")
        assert after["well"], (after, before)
        back.solstice("restore", backup)
        assert back.solstice("store", "check", check=1) | {"database": ""} == before | {"database": ""}
