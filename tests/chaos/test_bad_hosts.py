"""Good jobs need not wait for git hosts that refuse, fail or never answer."""

import asyncio
import contextlib
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from solstice_common.broker import Message, open_broker
from solstice_common.messages.states import RunState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_orchestrator.scheduling.workers import WorkerState
from solstice_orchestrator.store import open_store
from tests.builders import job_request
from tests.repositories import GIT_ENVIRONMENT, Repository
from tests.servers.git_servers import answering, git_backend, http_server
from tests.servers.hostile_git_host import BODIES, STATUSES, Hanging, hostile
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.own_thread import run_in_thread

GOOD, BAD = 40, 12
WAIT_SECONDS = 120
STREAM_SECONDS = 15.0
UNDER_WAY = 12
"""Good jobs of a stream that wait or run at any time."""


async def publish(shared_files: SharedFiles, requests: list[bytes]) -> None:
    settings = BrokerSettings(amqp_url=shared_files.broker_url)
    route = jobs_route(settings)
    async with open_broker(shared_files.broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(full_topology(settings))
        await broker.publish(
            [
                Message(
                    exchange=route.exchange, routing_key=route.routing_key, body=body, type="jobrequest.v1"
                )
                for body in requests
            ]
        )


async def seconds_for_good(directory: Path, bad_port: int | None, *, answers: bool = True) -> float:
    """How long good jobs take, beside those of a given failing host."""
    shared_files, repository = SharedFiles(directory=directory), Repository(directory / "good")
    sha = repository.commit({".solstice/job.sh": "true"})
    good = [job_request(repo_url=repository.url, commit_sha=sha, ref=None).encode() for _ in range(GOOD)]
    bad = [
        job_request(
            repo_url=f"http://127.0.0.1:{bad_port}/{number}", repo_full_name=f"bad/{number}", ref=None
        ).encode()
        for number in range(BAD if bad_port else 0)
    ]
    async with open_store(shared_files.database_url, lease_seconds=3) as store:
        with orchestrator(shared_files, GIT_PROTOCOLS="file,http", GOVERNOR="off") as process:
            begun = time.monotonic()
            await publish(shared_files, bad + good)
            async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
                while True:
                    changed.clear()
                    runs = (await store.runs(limit=100)).runs
                    if sum(run.state is RunState.SUCCEEDED for run in runs) == GOOD:
                        break
                    await changed.wait()
            took = time.monotonic() - begun
            if bad_port:
                (worker,) = await store.workers()
                assert (worker.state, worker.shrunk_to) == (WorkerState.ACTIVE, None)
            if bad_port and answers:
                host = f"127.0.0.1:{bad_port}"
                await asyncio.to_thread(process.logged, "git_host.unreachable", host=host)
    return took


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long good jobs take beside no bad host."""
    return run_in_thread(seconds_for_good(tmp_path_factory.mktemp("alone"), None))


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["refuses", "fails", "silent"])
async def test_good_jobs_keep_their_rate_beside_a_bad_host(tmp_path: Path, kind: str, without: float) -> None:
    if kind == "fails":
        with http_server(answering(500)) as port:
            beside = await seconds_for_good(tmp_path / "beside", port)
    else:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            if kind == "silent":
                server.listen(128)
            beside = await seconds_for_good(
                tmp_path / "beside", server.getsockname()[1], answers=kind != "silent"
            )
    print(f"{GOOD} good jobs: {without:.1f} s alone, {beside:.1f} s beside a host that {kind}")  # noqa: T201  the figures
    # On a busy machine, twice as long is normal; a host that held places or slots would cost half a minute.
    assert beside < 2 * without + 10


def silent_about_checkouts(root: Path, released: threading.Event) -> Any:
    """A git server that answers planning, and is silent to clients that fetch whole commits."""

    backend = git_backend(root)

    def do_post(self: Any) -> None:
        body = self.rfile.peek(int(self.headers["Content-Length"]))
        if b"fetch" in body and b"filter " not in body:
            released.wait(WAIT_SECONDS)
            self.close_connection = True
            return
        backend.do_POST(self)

    return type("Handler", (backend,), {"do_POST": do_post})


def served(path: Path) -> Repository:
    """A repository that gives planning single files."""
    repository = Repository(path)
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.git("config", "uploadpack.allowAnySHA1InWant", "true")
    return repository


async def until(query: str, shared_files: SharedFiles, least: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while await asyncio.to_thread(counted, shared_files, query) < least:  # noqa: ASYNC110  a file sends no notification
            await asyncio.sleep(0.1)


def counted(shared_files: SharedFiles, query: str) -> int:
    with contextlib.closing(sqlite3.connect(shared_files.directory / "store.db", timeout=30)) as connection:
        return int(connection.execute(query).fetchone()[0])


async def test_a_host_that_goes_silent_while_it_is_checked_out_from_leaves_slots_to_others(
    tmp_path: Path,
) -> None:
    shared_files, good = SharedFiles(directory=tmp_path), Repository(tmp_path / "good")
    sha = good.commit({".solstice/job.sh": "true"})
    bad = served(tmp_path / "served" / "bad")
    shas = [bad.commit({".solstice/job.sh": "true", "file": str(each)}) for each in range(BAD)]
    released = threading.Event()
    with (
        http_server(silent_about_checkouts(tmp_path / "served", released)) as port,
        orchestrator(shared_files, GIT_PROTOCOLS="file,http", GOVERNOR="off"),
    ):
        url = f"http://127.0.0.1:{port}/bad/.git"
        await publish(
            shared_files,
            [
                job_request(repo_url=url, repo_full_name=f"bad/{number}", commit_sha=each, ref=None).encode()
                for number, each in enumerate(shas)
            ],
        )
        try:
            await until("SELECT count(*) FROM jobs WHERE state = 'running'", shared_files, 4, 60)
            begun = time.monotonic()
            await publish(
                shared_files,
                [job_request(repo_url=good.url, commit_sha=sha, ref=None).encode() for _ in range(GOOD)],
            )
            await until(
                "SELECT count(*) FROM runs WHERE state = 'succeeded'", shared_files, GOOD, WAIT_SECONDS
            )
            print(f"{GOOD} good jobs behind 4 silent checkouts: {time.monotonic() - begun:.1f} s")  # noqa: T201
            assert counted(shared_files, "SELECT count(*) FROM jobs WHERE reason = 'host_away'") > 0
        finally:
            released.set()


def commit_with_long_name(repository: Repository) -> str:
    """A commit that no file system takes."""

    def tree(*lines: str) -> str:
        made = subprocess.run(
            ["git", "mktree"],
            cwd=repository.path,
            env=GIT_ENVIRONMENT,
            input="\n".join(lines) + "\n",
            check=True,
            capture_output=True,
            text=True,
        )
        return made.stdout.strip()

    repository.commit({".solstice/job.sh": "true"})
    blob = repository.git("rev-parse", "HEAD:.solstice/job.sh")
    folder = repository.git("rev-parse", "HEAD:.solstice")
    root = tree(f"040000 tree {folder}\t.solstice", f"100644 blob {blob}\t{'x' * 300}")
    sha = repository.git("commit-tree", "-m", "long name", root)
    repository.git("update-ref", "refs/heads/main", sha)
    return sha


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A host that accepts connections and never answers; its port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(128)
        yield server.getsockname()[1]


async def streamed(shared_files: SharedFiles, good: Repository, sha: str, seconds: float) -> float:
    """Good jobs per second, with always as many under way."""
    query = "SELECT count(*) FROM runs WHERE state = 'succeeded'"
    before = await asyncio.to_thread(counted, shared_files, query)
    begun, sent = time.monotonic(), 0
    while (spent := time.monotonic() - begun) < seconds:
        ended = await asyncio.to_thread(counted, shared_files, query) - before
        more = UNDER_WAY - (sent - ended)
        if more > 0:
            await publish(
                shared_files,
                [job_request(repo_url=good.url, commit_sha=sha, ref=None).encode() for _ in range(more)],
            )
            sent += more
        await asyncio.sleep(0.1)
    return ended / spent


@pytest.mark.alone
async def test_a_stream_of_good_jobs_keeps_its_rate_beside_bad_hosts_and_a_bad_committer(
    tmp_path: Path,
) -> None:
    shared_files, good = SharedFiles(directory=tmp_path), Repository(tmp_path / "good")
    sha, bad = good.commit({".solstice/job.sh": "sleep 0.3"}), Repository(tmp_path / "bad")
    bad_sha = commit_with_long_name(bad)
    with (
        listening() as silent,
        socket.socket() as refusing,
        orchestrator(shared_files, GIT_PROTOCOLS="file,http", GOVERNOR="off"),
    ):
        refusing.bind(("127.0.0.1", 0))
        ports = {"silent": silent, "refusing": refusing.getsockname()[1]}
        await streamed(shared_files, good, sha, 3)
        alone = await streamed(shared_files, good, sha, STREAM_SECONDS)
        await publish(
            shared_files,
            [
                job_request(
                    repo_url=f"http://127.0.0.1:{port}/{number}", repo_full_name=f"{kind}/{number}", ref=None
                ).encode()
                for number in range(BAD)
                for kind, port in ports.items()
            ],
        )

        async def push_badly() -> None:
            while True:
                await publish(
                    shared_files,
                    [
                        job_request(
                            repo_url=bad.url, repo_full_name="bad/names", commit_sha=bad_sha, ref=None
                        ).encode()
                    ],
                )
                await asyncio.sleep(1)

        pushing = asyncio.create_task(push_badly())
        try:
            beside = await streamed(shared_files, good, sha, STREAM_SECONDS)
        finally:
            pushing.cancel()
            await asyncio.wait([pushing])
        worker = "SELECT count(*) FROM jobs WHERE reason = 'commit_unusable' AND state = 'failed'"
        refused = counted(shared_files, worker)
        async with open_store(shared_files.database_url, lease_seconds=3) as store:
            (view,) = await store.workers()
    print(  # noqa: T201  the figures
        f"good jobs per second: {alone:.1f} alone, {beside:.1f} beside ({beside / alone:.0%}); {refused} bad commits ended"
    )
    assert refused > 0
    assert (view.state, view.shrunk_to) == (WorkerState.ACTIVE, None)
    # Other processes share the machine; a bad host that held slots, or a quarantine, would leave almost no
    # jobs.
    assert beside > 0.6 * alone


async def test_repositories_of_one_committer_stop_no_other_of_their_host(tmp_path: Path) -> None:
    shared_files, good = SharedFiles(directory=tmp_path), Repository(tmp_path / "root" / "good")
    sha = good.commit({".solstice/job.sh": "true"})
    kinds = [*map(str, STATUSES), *(kind.replace(" ", "_") for kind in BODIES)]
    late = [served(tmp_path / "root" / "late" / str(number)) for number in range(3)]
    with (
        http_server(hostile(tmp_path / "root")) as port,
        orchestrator(shared_files, GIT_PROTOCOLS="http", GOVERNOR="off") as process,
    ):
        host = f"127.0.0.1:{port}"
        bad = [
            job_request(repo_url=f"http://{host}/{kind}/{number}", repo_full_name=f"bad/{number}", ref=None)
            for kind in kinds
            for number in range(2)
        ]
        bad += [
            job_request(
                repo_url=f"http://{host}/late/{number}/.git",
                repo_full_name=f"late/{number}",
                commit_sha=each.commit({".solstice/job.sh": "true"}),
                ref=None,
            )
            for number, each in enumerate(late)
        ]
        await publish(shared_files, [each.encode() for each in bad])
        for each in bad:
            if each.repo_url.split("/")[3] in {"301", "refusal", "abort_of_the_fetch", "late"}:
                await asyncio.to_thread(process.logged, "git_host.unreachable", host=each.repo_url)
        expected = [
            job_request(repo_url=f"http://{host}/good/.git", commit_sha=sha, ref=None) for _ in range(10)
        ]
        await publish(shared_files, [each.encode() for each in expected])
        await until(
            "SELECT count(*) FROM runs WHERE state = 'succeeded'", shared_files, len(expected), WAIT_SECONDS
        )
    assert not [
        event
        for event in process.events
        if event["event"] == "git_host.unreachable" and event["host"] == host
    ]


async def test_failures_of_one_committer_hold_back_no_other_repository_of_the_host(tmp_path: Path) -> None:
    root, shared_files = tmp_path / "root", SharedFiles(directory=tmp_path)
    good = served(root / "good")
    sha = good.commit({".solstice/job.sh": "true"})
    with (
        http_server(hostile(root)) as port,
        orchestrator(shared_files, GIT_PROTOCOLS="http", GOVERNOR="off") as process,
    ):
        host = f"127.0.0.1:{port}"
        bad = [
            job_request(repo_url=f"http://{host}/{kind}/{number}", repo_full_name=f"bad/{number}", ref=None)
            for kind in ("500", "503", "closes")
            for number in range(4)
        ]
        await publish(shared_files, [each.encode() for each in bad])
        # The circuit is open for 4 s at least.
        await asyncio.to_thread(process.logged, "git_host.unreachable", host=host, failures=3)
        request = job_request(repo_url=f"http://{host}/good/.git", commit_sha=sha, ref=None)
        await publish(shared_files, [request.encode()])
        await until("SELECT count(*) FROM runs WHERE state = 'succeeded'", shared_files, 1, WAIT_SECONDS)
    assert counted(shared_files, "SELECT plan_attempt FROM runs WHERE state = 'succeeded'") == 1
    assert counted(shared_files, "SELECT attempt FROM jobs WHERE state = 'succeeded'") == 1


async def test_repositories_that_hang_stop_neither_known_nor_new_ones_of_their_host(tmp_path: Path) -> None:
    root, shared_files, hanging = tmp_path / "root", SharedFiles(directory=tmp_path), Hanging()
    known, new = served(root / "known"), served(root / "new")
    with (
        http_server(hostile(root, hanging)) as port,
        orchestrator(shared_files, GIT_PROTOCOLS="http", GOVERNOR="off") as process,
    ):

        async def push(repository: Repository, number: int) -> None:
            sha = repository.commit({".solstice/job.sh": "true", "number": str(number)})
            url = f"http://127.0.0.1:{port}/{repository.path.name}/.git"
            await publish(shared_files, [job_request(repo_url=url, commit_sha=sha, ref=None).encode()])
            query = "SELECT count(*) FROM runs WHERE state = 'succeeded'"
            await until(query, shared_files, number, WAIT_SECONDS)

        try:
            await push(known, 1)
            bad = [
                job_request(
                    repo_url=f"http://127.0.0.1:{port}/hangs/{number}",
                    repo_full_name=f"bad/{number}",
                    ref=None,
                )
                for number in range(8)
            ]
            await publish(shared_files, [each.encode() for each in bad])
            # More than hold places of their host at once.
            for _ in range(4):
                await asyncio.to_thread(hanging.paths.get, timeout=WAIT_SECONDS)
            await push(known, 2)
            await push(new, 3)
            # None of those that hang has been given up yet.
            assert not [event for event in process.events if event["event"] == "git_host.unreachable"]
        finally:
            hanging.released.set()
