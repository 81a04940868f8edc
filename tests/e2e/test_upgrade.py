"""An installation of the previous release is upgraded without losing or repeating anything."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import httpx2
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
from tests.releases.release_code import ABSENT, is_in_history, python_path, unpack
from tests.servers.forge_api import Key, forge_api
from tests.servers.forge_integration import FRESH_FORGE, forge_integration
from tests.servers.forge_integration import START as FORGE
from tests.servers.forks import run_command
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, SharedFiles, orchestrator
from tests.servers.orchestrator import START as ORCHESTRATOR
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
    url: str
    """Of the orchestrator."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """How the services of a release are started."""

    forge: str = FORGE
    orchestrator: str = ORCHESTRATOR
    environment: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def started(
    installation: Installation, root: Path, release: Release
) -> AsyncIterator[tuple[Mapping[Key, Mapping[str, Any]], str]]:
    """The services of a release on these databases, with a forge and its repository.

    Yields what the forge shows, and the orchestrator's URL.
    """
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
                start=release.forge,
                FORGE_CONFIG=str(config),
                FORGEJO_WEBHOOK_SECRET="invented",
                **installation.urls,
                **never_purged,
                **release.environment,
            ),
        )
        process = await asyncio.to_thread(
            stack.enter_context,
            orchestrator(installation.files, start=release.orchestrator, **settings, **release.environment),
        )
        yield forge.shown, process.url


@asynccontextmanager
async def upgraded(installation: Installation, root: Path) -> AsyncIterator[Running]:
    """The services of the new release on these databases."""
    async with AsyncExitStack() as stack:
        shown, url = await stack.enter_async_context(started(installation, root, Release()))
        store = await stack.enter_async_context(open_store(installation.store_url))
        broker = await stack.enter_async_context(open_broker(installation.files.broker_url, name="test"))
        await broker.ready(60)
        yield Running(shown=shown, store=store, broker=broker, url=url)


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
        marks = await asyncio.to_thread(
            installation.solstice, "watermarks", "--all", SOLSTICE_URL=running.url
        )
    runs = found["runs"]
    handled = {each["ref"]: each["handled"]["run_id"] for each in marks["watermarks"] if each["handled"]}
    for name in ("ended", "waiting", "planning"):
        # Also of a push that the previous release handled, which knew no watermarks.
        assert handled[f"refs/heads/{name}"] == runs[derive_request_id(name)]["run_id"]
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


@pytest.fixture
def place(
    installation: Installation, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Installation]:
    """An empty place for a restore of the installation."""
    files = SharedFiles(directory=tmp_path / "restored")
    files.directory.mkdir()
    if installation.inbox_url != installation.store_url:
        inbox_url = f"sqlite:///{files.directory / 'inbox.db'}"
        yield replace(installation, files=files, store_url=files.database_url, inbox_url=inbox_url)
        return
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    with server.database() as database:
        yield replace(installation, files=files, store_url=database.url, inbox_url=database.url)


async def test_a_backup_of_before_the_upgrade_is_the_way_back(
    installation: Installation, place: Installation, tmp_path: Path
) -> None:
    backup = tmp_path / "before.zip"
    before = installation.solstice("store", "check", check=1)
    ours = migrations_of(f"solstice_orchestrator.store.schema.{installation.kind}")
    assert before["pending"] == [step.version for step in ours if step.version > SCHEMA]
    installation.solstice("backup", backup)
    installation.solstice("store", "migrate")
    after = installation.solstice("store", "check")
    assert after["well"], (after, before)
    place.solstice("restore", backup)
    assert place.solstice("store", "check", check=1) | {"database": ""} == before | {"database": ""}


# The code of a release is in the history, which the clone of a CI server may lack.
@pytest.mark.skipif(not is_in_history(), reason=ABSENT)
@pytest.mark.timeout(240)
async def test_the_previous_release_goes_on_from_the_backup(
    installation: Installation, place: Installation, tmp_path: Path
) -> None:
    """An upgrade was begun, took a request from the queue, and was taken back."""
    backup = tmp_path / "before.zip"
    in_the_queue = derive_request_id("in the queue")
    await asyncio.to_thread(installation.solstice, "backup", backup)
    async with upgraded(installation, tmp_path / "upgraded") as running:

        async def took_the_request() -> bool:
            return in_the_queue in (await seen(running.store))["runs"]

        await wait_until_true("the new release took the request", took_the_request)
    # The recorded requests arrived when the release was made.
    await asyncio.to_thread(place.solstice, "restore", backup, "--republish", "36500d")
    path = python_path(await asyncio.to_thread(unpack, tmp_path / "old"))
    old = Release(
        forge=FRESH_FORGE,
        orchestrator=FRESH_ORCHESTRATOR,
        environment={"PYTHONPATH": path, "LEASE_SECONDS": "30"},
    )
    expected = {derive_request_id(name): end for name, end in ENDS.items() if name != "asked afterwards"}
    async with (
        started(place, tmp_path / "restarted", old) as (shown, url),
        httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):

        async def all_ended() -> bool:
            runs = (await client.get("/api/v1/runs", params={"limit": 100})).json()["runs"]
            states = {run["request_id"]: run["state"] for run in runs}
            return {key: states.get(key) for key in expected} == expected

        async def statuses_are_shown() -> bool:
            return shown.keys() >= CONTEXTS

        await wait_until_true("all has ended", all_ended)
        await wait_until_true("the forge shows them", statuses_are_shown)
