"""No service or command prints, logs, serves or stores a planted secret."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from solstice_cli.up import UpSettings
from solstice_common.http.tokens import TokenScope
from solstice_common.runtime.hidden_secrets import may_hold_secret
from tests.executor_harness import AS_OTHER_USER, NEEDS_OTHER_USER, NEEDS_PROC, NOBODY_UID
from tests.polling import wait_until_true
from tests.recorded_git import recorded_git
from tests.repositories import Repository
from tests.servers.forks import Command, ForkedProgram
from tests.servers.git_servers import git_backend, http_server
from tests.servers.http_proxy import http_proxy
from tests.servers.ports import free_ports
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.servers.service_process import base_environment
from tests.servers.tokens import bearer, make_token
from tests.signing import KeyPair

MARK = "plaNted"
"""Stands in every piece of every secret, so that no part of one passes unseen."""
STRANGE = "#{0}[{0}]{0}?{0}/{0}%{0}"
PASSWORD = MARK + STRANGE.format(MARK)
GITLAB_TOKEN = f"whsec_{b64encode(MARK.encode() * 6).decode()}"
SECRET = f"webhook-{MARK}{STRANGE.format(MARK)}"
PROGRAMS = {
    "solstice": "solstice_cli.main",
    "forge-integration": "solstice_forge.cli",
    "orchestrator": "solstice_orchestrator.cli",
}
PLACES = ["127.0.0.1:9/x", "127.0.0.1:port/x", "[::1/x", f"127.0.0.1:9/x?password={MARK}"]
BROKERS = ["amqps", "redis", "rediss", "nats", "tls"]
PASSWORDS = {"raw": PASSWORD, "quoted": quote(PASSWORD, safe="")}
PAGES = ["/", "/workers", "/schedules", "/deliveries", "/metrics", "/readyz", "/healthz", "/openapi.json"]
API = ["runs", "jobs", "workers", "schedules", "scale", "deliveries", "deliveries/1"]

CHANGE = ("--repo-url", "https://forge.invalid/a/b.git", "--ref", "refs/heads/main", "--sha", "c" * 40)

pytestmark = [
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
    pytest.mark.timeout(400),  # it may have to start both servers first
]


def program(*words: str, first: str = "") -> list[str]:
    """The command; `first` is Python that runs before it."""
    return [sys.executable, "-c", f"{first}from {PROGRAMS[words[0]]} import main; main()", *words[1:]]


def printed(
    environment: dict[str, str],
    *words: str,
    seconds: float = 60.0,
    before: Sequence[str] = (),
    first: str = "",
) -> str:
    """The output of a command; a service that does not end by itself is ended."""
    with ExitStack() as stack:
        process: Command | subprocess.Popen[str]
        if before or first:
            process = stack.enter_context(
                subprocess.Popen(
                    [*before, *program(*words, first=first)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        else:
            process = Command(words, env=environment, errors_apart=False)
        try:
            reported, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                reported, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                reported, _ = process.communicate()
    return f"{' '.join(words[:2])}: {reported}"


@contextmanager
def serving(environment: dict[str, str], log: Path, *words: str) -> Iterator[None]:
    with log.open("w") as output, Path(os.devnull).open() as nothing:
        to = output.fileno()
        process = ForkedProgram(words, env=environment, stdin=nothing.fileno(), stdout=to, stderr=to)
        with ended_after(process):
            yield


@contextmanager
def ended_after(process: "subprocess.Popen[Any] | ForkedProgram") -> Iterator[None]:
    """End the process in order, and kill it when it does not end."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def with_password(url: str, user: str, password: str) -> str:
    shared_files = urlsplit(url)
    return shared_files._replace(
        netloc=f"{user}:{quote(password, safe='')}@{shared_files.hostname}:{shared_files.port}"
    ).geturl()


@contextmanager
def planted_user(vhost: Vhost) -> Iterator[str]:
    """The AMQP URL of a user whose password is planted."""
    name = f"user-{vhost.name}"
    vhost.server.api("PUT", f"users/{name}", {"password": PASSWORD, "tags": ""})
    vhost.server.api(
        "PUT", f"permissions/{vhost.name}/{name}", dict.fromkeys(("configure", "write", "read"), ".*")
    )
    try:
        yield with_password(vhost.url, name, PASSWORD)
    finally:
        vhost.server.api("DELETE", f"users/{name}")


@contextmanager
def planted_role(database: ScratchDatabase) -> Iterator[str]:
    """The URL of the database for a role whose password is planted."""
    name = f"role_{database.name}"
    database.query(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    try:
        yield with_password(database.url, name, PASSWORD)
    finally:
        database.disconnect()
        database.query(f"REASSIGN OWNED BY {name} TO CURRENT_USER")
        database.query(f"DROP ROLE {name}")


def all_rows(database: ScratchDatabase) -> list[str]:
    """The rows of each table, as text."""
    tables = database.query(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    return [str(database.query(f"SELECT each::text FROM {name[0]} AS each")) for name in tables]  # noqa: S608  names of our own tables


def seen(reported: str, *more: str) -> list[str]:
    """The lines that hold a planted word, or one of `more`."""
    words = [MARK.lower(), *(word.lower() for word in more)]
    return [line for line in reported.splitlines() if any(word in line.lower() for word in words)]


async def answers(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/readyz")).is_success
    except httpx2.HTTPError:
        return False


async def test_what_works_says_nothing_of_it(
    rabbitmq_vhost: Vhost, postgresql_database: ScratchDatabase, tmp_path: Path
) -> None:
    forge_port, orchestrator_port = map(str, free_ports(2))
    forge, page = f"http://127.0.0.1:{forge_port}", f"http://127.0.0.1:{orchestrator_port}"
    token = make_token(tmp_path / "tokens.json", "all", *TokenScope)
    with planted_user(rabbitmq_vhost) as amqp_url, planted_role(postgresql_database) as database:
        environment = {
            **base_environment(),
            "SOLSTICE_HOME": str(tmp_path / "state"),
            "SOLSTICE_TOKENS": str(tmp_path / "tokens.json"),
            "SOLSTICE_TOKEN": token,
            "SOLSTICE_URL": page,
            "AMQP_URL": amqp_url,
            "DATABASE_URL": database,
            "FORGE_INBOX_URL": database,
            "FORGE_PORT": forge_port,
            "ORCHESTRATOR_PORT": orchestrator_port,
            "LOG_LEVEL": "debug",
            **{f"{name}_WEBHOOK_SECRET": SECRET for name in ("FORGEJO", "GITEA", "GITHUB", "GITLAB")},
        }
        reported: list[str] = []
        with (
            serving(environment, tmp_path / "forge.log", "forge-integration", "serve"),
            serving(environment, tmp_path / "orchestrator.log", "orchestrator", "run"),
        ):
            for base in (forge, page):
                async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
                    await wait_until_true(f"{base} is ready", lambda http=http: answers(http))  # type: ignore[misc]  # mypy does not infer a lambda with a default
            options = ("--repo-url", "https://forge.invalid/a/b.git", "--commit-sha", "c" * 40)
            commands = [
                ("solstice", "webhook", "send", *CHANGE, "--secret", SECRET, forge),
                ("solstice", "webhook", "send", *CHANGE, "--secret", f"not {SECRET}", forge),
                ("solstice", "enqueue", *options),
                ("solstice", "dlq", "list"),
                ("solstice", "keys", "list"),
                ("solstice", "topology", "check"),
                ("solstice", "topology", "show"),
                ("solstice", "topology", "declare"),
                ("solstice", "runs"),
                ("solstice", "token", "list"),
                ("solstice", "store", "check"),
                (
                    "solstice",
                    "runs",
                    "--solstice-url",
                    f"http://x:{PASSWORDS['quoted']}@127.0.0.1:{orchestrator_port}",
                ),
                ("forge-integration", "deliveries", "list", "--json"),
                ("forge-integration", "deliveries", "show", "1"),
                ("forge-integration", "statuses", "dead"),
                ("forge-integration", "serve"),  # its port is taken
                ("orchestrator", "run"),
            ]
            with ThreadPoolExecutor(4) as pool:
                reported += pool.map(lambda words: printed(environment, *words), commands)
            for base in (forge, page):
                async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
                    for path in [*PAGES, *(f"/api/v1/{name}" for name in API)]:
                        for headers in (bearer(token), bearer(f"{MARK}-wrong"), {}):
                            answer = await http.get(path, headers=headers)
                            reported.append(f"{base}{path}: {dict(answer.headers)} {answer.text}")
        logs = [(tmp_path / name).read_text() for name in ("forge.log", "orchestrator.log")]
    assert "forge.started" in logs[0]
    assert "orchestrator.started" in logs[1]
    for text in (*reported, *logs):
        # The token is no planted word: it is made, and its text must not come back either.
        assert seen(text, token) == [], text[:200]


def wrong_urls() -> Iterator[tuple[str, dict[str, str]]]:
    for scheme in BROKERS:
        where = f"{scheme}://joe:{PASSWORDS['quoted']}@127.0.0.1:9,127.0.0.1:9/?token={MARK}&auth={MARK}"
        yield scheme, {"AMQP_URL": where}
    for kind, password in PASSWORDS.items():
        for shared_files in PLACES:
            where = f"joe:{password}@{shared_files}"
            yield (
                f"{kind} {shared_files}",
                {
                    "AMQP_URL": f"amqp://{where}",
                    "DATABASE_URL": f"postgresql://{where}",
                    "FORGE_INBOX_URL": f"postgresql://{where}",
                    "SOLSTICE_URL": f"http://{where}",
                },
            )


@pytest.mark.parametrize("urls", [pytest.param(urls, id=name) for name, urls in wrong_urls()])
def test_errors_never_contain_the_value(rabbitmq_flavour: str, tmp_path: Path, urls: dict[str, str]) -> None:
    environment = {
        **base_environment(),
        **urls,
        "SOLSTICE_HOME": str(tmp_path),
        "SOLSTICE_TOKEN": f"{MARK}-token",
        "FORGE_PORT": "0",
        "ORCHESTRATOR_PORT": "0",
        "FORGEJO_WEBHOOK_SECRET": SECRET,
        "ENQUEUE_CONNECT_SECONDS": "1",
        "LOG_LEVEL": "debug",
    }
    options = ("--repo-url", "https://forge.invalid/a/b.git", "--commit-sha", "c" * 40)
    commands = [
        (environment, ("solstice", "topology", "declare")),
        (environment, ("solstice", "enqueue", *options)),
        (environment, ("forge-integration", "serve")),
        (environment, ("orchestrator", "run")),
    ]
    if "DATABASE_URL" in urls:
        # With a wrong database a service ends before it reads the URL of its broker.
        services = {
            name: value
            for name, value in environment.items()
            if name not in {"DATABASE_URL", "FORGE_INBOX_URL"}
        }
        commands += [
            (environment, ("solstice", "runs")),
            (environment, ("solstice", "webhook", "send", *CHANGE, "--secret", SECRET, urls["SOLSTICE_URL"])),
            (environment, ("solstice", "store", "check")),
            (environment, ("forge-integration", "deliveries", "list")),
            (services, ("forge-integration", "serve")),
            (services, ("orchestrator", "run")),
        ]
    with ThreadPoolExecutor(3) as pool:
        reported = list(pool.map(lambda each: printed(each[0], *each[1], seconds=6.0), commands))
    for text in reported:
        assert seen(text) == [], text
        assert "Traceback" not in text


SEARCH = """
env
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -a -e @MARK@ -e left-in-the-open
for each in /proc/[0-9]*; do (exec 3< $each/mem) 2>/dev/null && readlink $each/exe; done
ls core* 2>/dev/null
true
"""
"""A job that searches for secrets in all processes of its user."""


@contextmanager
def up_as_other_user(environment: dict[str, str], folder: Path) -> Iterator[dict[str, str]]:
    """`solstice up` as an unprivileged user; what it prints once it is ready."""
    with (
        (folder / "up.log").open("w") as output,
        subprocess.Popen(
            [*AS_OTHER_USER, *program("solstice", "up", "--json")],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        ) as process,
        ended_after(process),
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "up.log").read_text()
        yield json.loads(line)


@contextmanager
def open_process(text: str) -> Iterator[None]:
    """A process of that user which hides nothing."""
    with subprocess.Popen([*AS_OTHER_USER, "sleep", "1000"], env={**os.environ, "OPEN": text}) as process:
        try:
            yield
        finally:
            process.kill()


@NEEDS_PROC
@NEEDS_OTHER_USER
def test_every_secret_of_up_is_found_nowhere(
    rabbitmq_vhost: Vhost, postgresql_database: ScratchDatabase
) -> None:
    """Jobs, git, commands, pages, logs, files and rows show none of them."""
    key = KeyPair()
    forge_port, orchestrator_port = map(str, free_ports(2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = Repository(folder / "root" / "app")
        script = SEARCH.replace("@MARK@", f"{MARK[:-1]}[{MARK[-1]}]")  # it does not find itself
        sha = repository.commit(
            {".solstice/workflow.kdl": f'job "look" {{ step run=#"""\n{script}\n"""# }}\n'}
        )
        token = make_token(folder / "tokens.json", "all", *TokenScope)
        with (
            planted_user(rabbitmq_vhost) as amqp_url,
            planted_role(postgresql_database) as database,
            http_proxy(user=f"joe {MARK}", password=PASSWORD) as proxy,
            http_server(git_backend(folder / "root")) as port,
        ):
            urls = {
                "amqp_url": amqp_url,
                "database_url": database,
                "forge_inbox_url": database,
                "signing_keys": key.text,
                "gitlab_signing_token": GITLAB_TOKEN,
                # No collector is there, so every attempt to send spans fails.
                "otel_exporter_otlp_endpoint": f"http://joe:{PASSWORDS['quoted']}@127.0.0.1:9",
                "otel_exporter_otlp_headers": f"authorization=Bearer%20{MARK}",
            }
            judged = [name for name, field in UpSettings.model_fields.items() if may_hold_secret(field)]
            environment = {
                **base_environment(),
                **{setting.upper(): urls.get(setting, SECRET) for setting in judged},
                "PATH": recorded_git(folder),
                "HOME": name,
                "SOLSTICE_HOME": str(folder / "state"),
                "SOLSTICE_TOKENS": str(folder / "tokens.json"),
                "SOLSTICE_TOKEN": token,
                "SOLSTICE_URL": f"http://127.0.0.1:{orchestrator_port}",
                "FORGE_PORT": forge_port,
                "ORCHESTRATOR_PORT": orchestrator_port,
                "LOG_LEVEL": "debug",
                "http_proxy": proxy.url(),
                "HTTPS_PROXY": proxy.url(),
            }
            for each in (folder, *folder.glob("*.json"), folder / "bin", folder / "bin" / "git"):
                os.chown(each, NOBODY_UID, NOBODY_UID)
            options = ("--repo-url", f"http://127.0.0.1:{port}/app/.git", "--commit-sha", sha, "--follow")
            with open_process("left-in-the-open"), up_as_other_user(environment, folder) as ready:
                followed = printed(environment, "solstice", "enqueue", *options, before=AS_OTHER_USER)
                found = [followed, json.dumps(ready)]
                for base in (f"http://127.0.0.1:{forge_port}", ready["page"]):
                    with httpx2.Client(base_url=base, trust_env=False, timeout=30) as http:
                        for route in [*PAGES, *(f"/api/v1/{route}" for route in API)]:
                            answer = http.get(route, headers=bearer(token))
                            found.append(f"{route}: {dict(answer.headers)} {answer.text}")
            assert set(proxy.authorizations) == {proxy.authorization}
            rows = all_rows(postgresql_database)
        of_git = (folder / "of-git").read_text()
        files = [each for each in folder.rglob("*") if each.is_file() and folder / "root" not in each.parents]
        found += [each.read_bytes().decode(errors="replace") for each in files]
    assert "OPEN=left-in-the-open" in followed
    assert "SOLSTICE_JOB_ID" in followed
    assert "http_proxy=http://solstice:" in of_git
    assert len(rows) > 5
    assert not [each for each in files if each.name.startswith("core")]
    for text in (*found, *rows):
        assert seen(text, token, json.loads(key.text)["d"], proxy.authorization, GITLAB_TOKEN) == [], text[
            :200
        ]
