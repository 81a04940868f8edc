"""`solstice doctor` on set-ups that are well, and on broken ones."""

import json
import re
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from solstice_cli.doctor.examination import Examination, examine
from solstice_cli.doctor.findings import Check, Finding, Level
from solstice_cli.doctor.setup_settings import SetupSettings
from solstice_cli.main import app
from solstice_common.cli.options import load_settings
from solstice_orchestrator.processes.egress import egress_proxy
from tests.integration.cli.test_narrow import on_a_terminal
from tests.servers.podman import networks_can_be_made
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import Vhost
from tests.servers.solstice_up import solstice_up
from tests.stores import sqlite_store

SECONDS: Final = 60.0
"""A server of a test may be as busy as its machine."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLSTICE_HOME", str(tmp_path / "home"))


async def found(check: Check, *, webhook_url: str = "", **settings: Any) -> Finding:
    return (await all_found([check], webhook_url=webhook_url, **settings))[check]


async def all_found(checks: list[Check], *, webhook_url: str = "", **settings: Any) -> dict[Check, Finding]:
    visit = Examination(
        settings=load_settings(SetupSettings, **settings), webhook_url=webhook_url, seconds=SECONDS
    )
    return {each.check: each for each in await examine(visit, checks)}


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nothing listens on, and that no other program gets meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def service(status: int, document: Any, date: str = "") -> Iterator[str]:
    """A server that answers `/readyz` so; its clock may be another one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def date_time_string(self, timestamp: float | None = None) -> str:
            return date or super().date_time_string(timestamp)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


class TestBroker:
    async def test_a_broker_that_answers_is_well_and_an_empty_one_lacks_its_queues(
        self, rabbitmq_vhost: Vhost
    ) -> None:
        visit = await all_found([Check.BROKER, Check.TOPOLOGY], amqp_url=rabbitmq_vhost.url)
        assert visit[Check.BROKER].level is Level.OK, visit
        assert visit[Check.TOPOLOGY].level is Level.WARNING
        assert "topology check" in visit[Check.TOPOLOGY].remedy

    async def test_a_wrong_password_is_named_and_not_shown(self, rabbitmq_vhost: Vhost) -> None:
        parts = urlsplit(rabbitmq_vhost.url)
        wrong = rabbitmq_vhost.url.replace(
            f"{parts.username}:{parts.password}@", f"{parts.username}:hunter2@"
        )
        broker = await found(Check.BROKER, amqp_url=wrong)
        assert broker.level is Level.FAILURE
        assert "ACCESS_REFUSED" in broker.detail
        assert "hunter2" not in str(broker)

    @pytest.mark.parametrize("scheme", ["amqp", "redis", "nats"])
    async def test_a_broker_that_is_gone_is_a_failure(self, scheme: str) -> None:
        with closed_port() as port:
            broker = await found(Check.BROKER, amqp_url=f"{scheme}://127.0.0.1:{port}/")
        assert broker.level is Level.FAILURE
        assert str(port) in broker.detail
        assert broker.remedy


class TestDatabase:
    async def test_a_current_schema_is_well(self, tmp_path: Path) -> None:
        assert (await found(Check.DATABASE, database_url=sqlite_store(tmp_path))).level is Level.OK

    @pytest.mark.parametrize(
        ("change", "level", "words"),
        [
            ("INSERT INTO schema_migrations VALUES (9999, '', 0)", Level.FAILURE, "9999"),
            ("DELETE FROM schema_migrations WHERE version > 20", Level.WARNING, "version 20, and misses"),
            ("UPDATE schema_migrations SET checksum = 'other'", Level.FAILURE, "another text of migration 1"),
            ("DROP TABLE schema_migrations", Level.WARNING, "no tables yet"),
        ],
        ids=["too new", "too old", "of another build", "empty"],
    )
    async def test_another_schema_is_named(
        self, tmp_path: Path, change: str, level: Level, words: str
    ) -> None:
        url = sqlite_store(tmp_path)
        with sqlite3.connect(tmp_path / "store.db") as file:
            file.execute(change)
        file.close()
        database = await found(Check.DATABASE, database_url=url)
        assert (database.level, words in database.detail) == (level, True), database

    async def test_a_file_that_is_no_database_is_a_failure(self, tmp_path: Path) -> None:
        (tmp_path / "inbox.db").write_bytes(b"no database" * 1000)
        inbox = await found(Check.INBOX, forge_inbox_url=f"sqlite:///{tmp_path / 'inbox.db'}")
        assert inbox.level is Level.FAILURE

    async def test_postgresql_tells_its_state_and_its_time(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        url = postgresql_database.url
        visit = await all_found(
            [Check.DATABASE, Check.INBOX, Check.CLOCK], database_url=url, forge_inbox_url=url
        )
        assert [each.level for each in visit.values()] == [Level.WARNING, Level.WARNING, Level.OK], visit
        assert "database" in visit[Check.CLOCK].detail

    async def test_a_wrong_password_of_postgresql_is_named_and_not_shown(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        parts = urlsplit(postgresql_database.url)
        wrong = postgresql_database.url.replace(
            f"{parts.username}:{parts.password}@", f"{parts.username}:hunter2@"
        )
        visit = await all_found([Check.DATABASE, Check.INBOX], database_url=wrong, forge_inbox_url=wrong)
        for each in visit.values():
            assert each.level is Level.FAILURE, visit
            assert "password authentication failed" in each.detail
            assert "user, password" in each.remedy
            assert "hunter2" not in str(each)

    async def test_a_wrong_name_and_a_server_that_is_gone_are_failures(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        url = postgresql_database.url
        wrong = url.replace(urlsplit(url).path, "/nowhere")
        database = await found(Check.DATABASE, database_url=wrong)
        assert (database.level, "nowhere" in database.detail) == (Level.FAILURE, True), database
        with closed_port() as port:
            database = await found(
                Check.DATABASE, database_url=f"postgresql://me:hunter2@127.0.0.1:{port}/ci"
            )
        assert database.level is Level.FAILURE
        assert "hunter2" not in str(database)


class TestMachine:
    async def test_a_disk_below_the_governors_limit_is_a_failure(self) -> None:
        assert (await found(Check.DISK, governor="disk=0.001%")).level is Level.OK
        disk = await found(Check.DISK, governor="disk=99.999%")
        assert disk.level is Level.FAILURE
        assert "99.999" in disk.detail

    @pytest.mark.parametrize("folder", ["/proc/solstice", "/dev/null/solstice", "/proc"])
    async def test_a_folder_that_cannot_be_written_is_named_with_its_setting(self, folder: str) -> None:
        folders = await found(Check.FOLDERS, workspaces=folder)
        assert folders.level is Level.FAILURE, folders
        assert f"WORKSPACES: {folder}: " in folders.detail
        assert (await found(Check.FOLDERS)).level is Level.OK

    async def test_caches_are_tried_where_they_are(self, tmp_path: Path) -> None:
        caches = await found(Check.CACHES, cache_directory=tmp_path / "caches")
        assert (caches.level, "not there yet" in caches.detail) == (Level.OK, True), caches
        (tmp_path / "caches").mkdir()
        caches = await found(Check.CACHES, cache_directory=tmp_path / "caches")
        assert (caches.level, "works; 0 caches, 0 of 20480 MiB" in caches.detail) == (Level.OK, True), caches
        caches = await found(Check.CACHES, cache_directory="/proc/solstice")
        assert (caches.level, "/proc/solstice: " in caches.detail) == (Level.WARNING, True), caches

    async def test_a_bucket_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        bucket: dict[str, Any] = {"cache_bucket": "s3://caches", "cache_directory": tmp_path / "caches"}
        caches = await found(Check.CACHES, **bucket)
        assert (caches.level, "CACHE_CREDENTIALS" in caches.detail) == (Level.FAILURE, True), caches
        (file := tmp_path / "credentials.toml").write_text('key_id = "a"\nsecret = "hunter2"\n')
        with closed_port() as port:
            endpoint: dict[str, Any] = {
                "cache_endpoint": f"http://127.0.0.1:{port}",
                "cache_credentials": str(file),
            }
            caches = await found(Check.CACHES, **bucket, **endpoint)
        assert (caches.level, "s3://caches at http" in caches.detail) == (Level.WARNING, True), caches
        assert "hunter2" not in str(caches)

    async def test_looking_leaves_nothing_behind(self, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        await all_found([each for each in Check if each not in {Check.WEBHOOKS, Check.ORCHESTRATOR}])
        assert names_in(tmp_path) == ["home"]
        assert names_in(tmp_path / "home") == []

    async def test_a_secret_is_there_and_for_its_owner_alone(self, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens.json"
        tokens.write_text("{}")
        tokens.chmod(0o644)
        secrets = await found(Check.SECRETS, solstice_tokens=tokens)
        assert (secrets.level, str(tokens) in secrets.remedy) == (Level.WARNING, True)
        tokens.chmod(0o600)
        assert (await found(Check.SECRETS, solstice_tokens=tokens)).level is Level.OK
        secrets = await found(Check.SECRETS, git_credentials=str(tmp_path / "nothing.toml"))
        assert (secrets.level, "GIT_CREDENTIALS" in secrets.detail) == (Level.FAILURE, True)


class TestEgress:
    """As root with the right to networks, as in `test_egress.py`."""

    async def test_a_proxy_that_starts_is_well(self) -> None:
        if not networks_can_be_made():
            # Machines of CI give root that right, other containers do not.
            pytest.skip("not asked for: root may make no networks here, and the proxy needs one")
        egress = await found(Check.EGRESS, executor="podman", untrusted_egress="pypi.org,*.debian.org")
        assert (egress.level, "2 hosts" in egress.detail) == (Level.OK, True), egress

    async def test_a_proxy_that_does_not_start_is_a_failure_with_its_message(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = "import sys; sys.exit('no such user')"
        monkeypatch.setattr(egress_proxy, "proxy_command", lambda _: (sys.executable, "-c", program))
        egress = await found(Check.EGRESS, executor_map="linux=podman", untrusted_egress="pypi.org")
        assert egress.level is Level.FAILURE
        assert ("no such user" if networks_can_be_made() else "network") in egress.detail

    async def test_hosts_without_containers_have_no_effect(self) -> None:
        egress = await found(Check.EGRESS, untrusted_egress="pypi.org")
        assert (egress.level, "no effect" in egress.detail) == (Level.WARNING, True)
        assert (await found(Check.EGRESS)).level is Level.OK


class TestServices:
    async def test_a_port_that_nothing_listens_on_is_a_failure(self) -> None:
        with closed_port() as port:
            visit = await all_found(
                [Check.WEBHOOKS, Check.ORCHESTRATOR], forge_port=port, orchestrator_port=port
            )
        assert [each.level for each in visit.values()] == [Level.FAILURE, Level.FAILURE]
        assert str(port) in visit[Check.WEBHOOKS].detail

    async def test_a_service_that_is_not_ready_says_why(self) -> None:
        with service(503, {"missing": {"broker": "not connected"}, "version": "0.0.1"}) as url:
            visit = await all_found([Check.WEBHOOKS, Check.VERSIONS], webhook_url=url)
        assert (visit[Check.WEBHOOKS].level, visit[Check.VERSIONS].level) == (Level.FAILURE, Level.WARNING)
        assert "broker: not connected" in visit[Check.WEBHOOKS].detail
        assert "forge-integration runs 0.0.1" in visit[Check.VERSIONS].detail

    async def test_another_program_at_the_port_is_a_failure(self) -> None:
        with service(200, ["welcome"]) as url:
            assert (await found(Check.WEBHOOKS, webhook_url=url)).level is Level.FAILURE

    async def test_a_clock_of_another_time_is_a_failure(self) -> None:
        ready: dict[str, Any] = {"missing": {}, "notices": {}}
        with service(200, ready, date="Sat, 31 Jan 2026 12:00:00 GMT") as url:
            visit = await all_found([Check.WEBHOOKS, Check.CLOCK], webhook_url=url)
        assert (visit[Check.WEBHOOKS].level, visit[Check.CLOCK].level) == (Level.OK, Level.FAILURE)
        assert "forge-integration" in visit[Check.CLOCK].detail


def test_a_running_solstice_up_is_well(tmp_path: Path) -> None:
    with solstice_up(tmp_path / "home") as up:
        checks = {each["check"]: each for each in up.json("doctor", "--timeout", "60")["checks"]}
    assert list(checks) == [each.value for each in Check]
    assert {name for name, each in checks.items() if each["level"] != "ok"} <= {"disk"}, checks


def test_the_command_names_each_remedy_on_terminals_and_in_pipes(tmp_path: Path) -> None:
    with closed_port() as port:
        words = ["doctor", "--forge-port", str(port), "--only", "webhooks", "--only", "folders"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert [row[:2] for row in rows] == [["ok", "folders"], ["failure", "webhooks"]]
        assert rows[1][4] == "docs/operations/doctor.md#webhooks"
        document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
        assert document["well"] is False
        assert [each["check"] for each in document["checks"]] == ["folders", "webhooks"]
        code = f"import sys\nfrom solstice_cli.main import app\ntry:\n    app({words!r})\nexcept SystemExit as end:\n    print('exit', end.code)"
        shown = on_a_terminal(code, 60, SOLSTICE_HOME=str(tmp_path / "home"))
    assert re.search(r"^failure  webhooks      no forge-integration at ", shown, re.MULTILINE)
    assert "\u2026" not in shown
    assert "exit 1" in shown
    assert CliRunner().invoke(app, ["doctor", "--only", "folders"]).exit_code == 0
