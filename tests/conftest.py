"""Fixtures of every tier: the servers, and their lines in pytest's header."""

import ast
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

from solstice_common.storage import postgresql_connections
from solstice_orchestrator.processes.control_groups import own_group, sweep_empty
from solstice_orchestrator.store import JobStore, open_store
from tests.gated_jobs import GatedJob
from tests.servers.nats_server import NatsServer
from tests.servers.orchestrator import LEASE_SECONDS, SharedFiles
from tests.servers.own_thread import run_in_thread
from tests.servers.podman import PodmanStore, podman_store
from tests.servers.postgresql import (
    PostgreSQLServer,
    ScratchDatabase,
    own_postgresql,
    shared_postgresql,
)
from tests.servers.rabbitmq import FLAVOURS, RabbitMQServer, Vhost, flavours, own_rabbitmq, shared_rabbitmq
from tests.servers.redis_server import RedisServer
from tests.servers.shared_rabbitmq import ADDRESS, SharedRabbitMQ, joined_rabbitmq
from tests.servers.versions import (
    NATS,
    NATS_2_10,
    OF_NEWER_DEBIAN,
    REDIS,
    nats_flavours,
    needs_every_version,
    redis_flavours,
)
from tests.stores import sqlite_store

# The same examples each time: one that fails belongs to the change that is tested.
# `--hypothesis-profile search` looks for new ones. How long an example takes says how busy the machine is.
_BUSY: Final[dict[str, Any]] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, **_BUSY)
settings.register_profile("search", max_examples=3000, **_BUSY)
settings.load_profile("steady")

# rich, which structlog would use, never ends with an exception whose causes lead back to it.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A machine that stands still for some seconds ends transactions here only in the tests that are about this, which set
# a limit of their own; services that tests start have the limit of production.
postgresql_connections.SESSION["idle_in_transaction_session_timeout"] = "60s"

# A shell has its background processes ignore it, and all that these start; tests interrupt programs by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SHARED = pytest.StashKey[SharedRabbitMQ]()

SHOWN_LINES = 60
"""Lines of captured output that the report of a failed test shows."""

if sys.version_info < (3, 11, 8):
    # Before that version, Python sometimes raises SystemError ("AST constructor recursion depth mismatch")
    # for a text that it reads without an error the next time (github.com/python/cpython/issues/106905);
    # pytest, which parses every test and every traceback, would end the whole run.
    _parse = ast.parse

    def _parse_again(*arguments: Any, **options: Any) -> Any:
        for _ in range(9):
            with suppress(SystemError):
                return _parse(*arguments, **options)
        return _parse(*arguments, **options)

    setattr(ast, "parse", _parse_again)  # noqa: B010  an assignment would have to have all its overloads


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for garbage neither while tests are collected nor, later, among what was collected.

    It lives as long as the process, and a test that collects its own garbage would go through all of it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Restore the log configuration after each test.

    A command configures the logs of its process, which here is that of all later tests.
    """
    before = {**structlog.get_config()}
    yield
    structlog.configure(**before)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End shared servers, and remove the empty control groups of orchestrators that tests killed."""
    if _SHARED in config.stash:
        config.stash[_SHARED].close()
    group = own_group()
    if group is not None:
        sweep_empty(group)


def pytest_report_header() -> list[str]:
    return [
        _header("rabbitmq", FLAVOURS, *flavours()),
        _header("redis", (REDIS, *OF_NEWER_DEBIAN), *redis_flavours()),
        _header("nats", (NATS, NATS_2_10), *nats_flavours()),
    ]


def _header(what: str, known: Sequence[str], chosen: Sequence[str], why_not: str | None) -> str:
    line = f"{what}: {', '.join(chosen)}"
    left_out = [flavour for flavour in known if flavour not in chosen]
    return line if why_not is None else f"{line} (not asked for: {', '.join(left_out)}, since {why_not})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Allow a skip that says what was not requested; any other skip fails.

    Of a long captured output the report shows the end, so that a reader finds the assertion above it.
    """
    report = yield
    report.sections = [(title, _shortened(text)) for title, text in report.sections]
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith("not asked for: "):
            report.outcome = "failed"
            report.longrepr = (
                f"a skip says what it was not asked for (not asked for: ...), this one said {reason!r}"
            )
    return report


def _shortened(text: str) -> str:
    lines = text.splitlines(keepends=True)
    left_out = len(lines) - SHOWN_LINES
    return text if left_out <= 0 else "".join([f"... {left_out} lines before\n", *lines[-SHOWN_LINES:]])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = [marker.args[0] for marker in metafunc.definition.iter_markers("parametrize")]
    for name, of in (
        ("rabbitmq_flavour", flavours),
        ("redis_flavour", redis_flavours),
        ("nats_flavour", nats_flavours),
    ):
        if name in metafunc.fixturenames and name not in chosen:
            versions = of()[0] if needs_every_version(metafunc.module) else of()[0][:1]
            metafunc.parametrize(name, versions, scope="session")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each process that runs tests the address of the shared servers."""
    if _SHARED not in node.config.stash:
        node.config.stash[_SHARED] = SharedRabbitMQ()
    node.workerinput[ADDRESS] = node.config.stash[_SHARED].address


@pytest.fixture(scope="session")
def rabbitmq_servers(pytestconfig: pytest.Config) -> Iterator[Callable[[str], RabbitMQServer]]:
    """The shared server of a flavour, started on first use.

    For suites that run on other brokers as well.
    """
    address: str | None = getattr(pytestconfig, "workerinput", {}).get(ADDRESS)

    def server(flavour: str) -> RabbitMQServer:
        return shared_rabbitmq(flavour) if address is None else joined_rabbitmq(address, flavour)

    with ExitStack() as stack:
        yield cache(lambda flavour: stack.enter_context(server(flavour)))


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[Callable[[str], RedisServer]]:
    """The shared Redis of a flavour, started on first use."""
    with ExitStack() as stack:
        yield cache(lambda flavour: stack.enter_context(RedisServer(flavour=flavour)))


@pytest.fixture(scope="session")
def nats_servers() -> Iterator[Callable[[str], NatsServer]]:
    """The shared NATS of a flavour, started on first use."""
    with ExitStack() as stack:
        yield cache(lambda flavour: stack.enter_context(NatsServer(flavour=flavour)))


@pytest.fixture(scope="session")
def redis_server(redis_flavour: str, redis_servers: Callable[[str], RedisServer]) -> RedisServer:
    """A running Redis or Valkey, once per flavour and test process.

    Leave it running and empty it first.
    """
    return redis_servers(redis_flavour)


@pytest.fixture(scope="session")
def rabbitmq(rabbitmq_flavour: str, rabbitmq_servers: Callable[[str], RabbitMQServer]) -> RabbitMQServer:
    """A running RabbitMQ, once per flavour and run.

    Other processes run their tests on it at the same time: leave it and its settings as they are, and use a vhost of it.
    """
    assert rabbitmq_flavour in FLAVOURS
    return rabbitmq_servers(rabbitmq_flavour)


@pytest.fixture
def rabbitmq_vhost(rabbitmq: RabbitMQServer) -> Iterator[Vhost]:
    """A vhost that only this test uses; `.url` is its AMQP URL."""
    with rabbitmq.vhost() as vhost:
        yield vhost


@pytest.fixture(scope="session")
def _own_servers() -> Iterator[dict[str, RabbitMQServer]]:
    servers: dict[str, RabbitMQServer] = {}
    with ExitStack() as stack:
        stack.callback(lambda: [server.close() for server in servers.values()])
        yield servers


@pytest.fixture
def own_rabbitmq_vhost(rabbitmq_flavour: str, _own_servers: dict[str, RabbitMQServer]) -> Iterator[Vhost]:
    """A vhost on a server that the test may stop, kill and alarm (`.server`).

    Afterwards the server runs again.

    The server is this process's own, started with the first such test and kept for the next.
    """
    if rabbitmq_flavour not in _own_servers:
        # One at a time: two nodes more would only slow a small machine down.
        for flavour in list(_own_servers):
            _own_servers.pop(flavour).close()
        server = own_rabbitmq(rabbitmq_flavour)
        _own_servers[rabbitmq_flavour] = server
        server.start()
    server = _own_servers[rabbitmq_flavour]
    try:
        with server.vhost() as vhost:
            yield vhost
    except BaseException:
        # The next test gets a fresh server, in any case.
        _own_servers.pop(rabbitmq_flavour).close()
        raise


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """A running PostgreSQL, once per test process.

    Leave it running and use a database of it.
    """
    with shared_postgresql() as server:
        yield server


@pytest.fixture
def postgresql_database(postgresql: PostgreSQLServer) -> Iterator[ScratchDatabase]:
    """An empty database that only this test uses; `.url` is its address."""
    with postgresql.database() as database:
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that only this test uses, without any schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    database: ScratchDatabase = request.getfixturevalue("postgresql_database")
    return database.url


@pytest.fixture(scope="session")
def store_template(postgresql: PostgreSQLServer) -> Iterator[str]:
    """The name of a database with the schema of the job store, for copies."""
    with postgresql.database() as database:

        async def open_and_close() -> None:
            async with open_store(database.url):
                pass

        run_in_thread(open_and_close())
        yield database.name


@pytest.fixture
def store_database(postgresql: PostgreSQLServer, store_template: str) -> Iterator[ScratchDatabase]:
    """A database with the schema of the job store that only this test uses.

    It is a copy: more than a hundred statements make the schema.
    """
    with postgresql.database(store_template) as database:
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a job store that only this test uses; its schema is there."""
    if request.param == "sqlite":
        return sqlite_store(tmp_path)
    database: ScratchDatabase = request.getfixturevalue("store_database")
    return database.url


@pytest.fixture(scope="session")
def _own_postgresql() -> Iterator[list[PostgreSQLServer]]:
    servers: list[PostgreSQLServer] = []
    with ExitStack() as stack:
        stack.callback(lambda: [server.close() for server in servers])
        yield servers


@pytest.fixture
def own_postgresql_database(_own_postgresql: list[PostgreSQLServer]) -> Iterator[ScratchDatabase]:
    """A database on a server that the test may stop and kill (`.server`).

    Afterwards the server runs again.

    The server is this process's own, started with the first such test and kept for the next.
    """
    if not _own_postgresql:
        server = own_postgresql()
        _own_postgresql.append(server)
        server.start()
    (server,) = _own_postgresql
    try:
        with server.database() as database:
            yield database
    except BaseException:
        # The next test gets a fresh server, in any case.
        _own_postgresql.pop().close()
        raise


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanStore]:
    """A podman with the images of the tests, once per test process.

    Kill no process of it, and leave no container behind.
    """
    with podman_store(tmp_path_factory.mktemp("podman") / "store") as store:
        yield store


@pytest.fixture
def shared_files(tmp_path: Path) -> SharedFiles:
    """The files that the orchestrators of this test share."""
    return SharedFiles(directory=tmp_path)


@pytest.fixture
async def store(shared_files: SharedFiles) -> AsyncIterator[JobStore]:
    """The job store of `shared_files`, with the leases of its orchestrators."""
    async with open_store(sqlite_store(shared_files.directory), lease_seconds=LEASE_SECONDS) as opened:
        yield opened


@pytest.fixture
def gated_job(tmp_path: Path) -> GatedJob:
    """A commit whose jobs wait at a gate, which is shut."""
    return GatedJob(tmp_path)
