"""A password that servers refuse is on no page and in no output."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from tests.e2e.test_planted_secrets import API, MARK, PAGES, PASSWORD, printed, seen, serving
from tests.polling import wait_until_true
from tests.servers.certificates import authority
from tests.servers.nats_server import NatsServer
from tests.servers.ports import free_ports
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, RabbitMQServer
from tests.servers.redis_server import RedisServer
from tests.servers.service_process import base_environment
from tests.servers.versions import REDIS

WRONG = f"{PASSWORD} @{MARK}"
REFUSALS = {
    "rabbitmq": "ACCESS_REFUSED",
    "redis": "invalid username-password pair",
    "nats": "authorization violation",
    "rediss": "certificate verify failed",
    "tls": "certificate verify failed",
}
"""What the servers, and OpenSSL for a foreign certificate, say."""
COMMIT = ("--repo-url", "https://forge.invalid/a/b.git", "--commit-sha", "c" * 40)
WAITING = {
    "dlq": "solstice_cli.commands.dead_letters.dlq",
    "topology": "solstice_cli.commands.topology",
    "statuses": "solstice_forge.commands.statuses_command",
}
"""Commands that try to connect for ten seconds, by the module that says so."""

pytestmark = pytest.mark.timeout(400)  # it may have to start the servers first


@dataclass(frozen=True, kw_only=True)
class Refusal:
    url: str
    words: str


@pytest.fixture(params=REFUSALS)
def refusal(
    request: pytest.FixtureRequest,
    rabbitmq_servers: Callable[[str], RabbitMQServer],
    redis_servers: Callable[[str], RedisServer],
    tmp_path: Path,
) -> Iterator[Refusal]:
    """A server that refuses the password, or whose certificate we do not trust."""
    kind, login = request.param, f"joe:{quote(WRONG, safe='')}"
    with ExitStack() as stack:
        if kind == "rabbitmq":
            place = stack.enter_context(rabbitmq_servers(DEFAULT).vhost()).url.rpartition("@")[2]
        elif kind == "redis":
            place = f"127.0.0.1:{redis_servers(REDIS).port}/0"
        elif kind == "nats":
            users = 'authorization { users: [ { user: "joe", password: "other" } ] }'
            place = f"127.0.0.1:{stack.enter_context(NatsServer(settings=[users])).port}"
        else:
            ca = authority(tmp_path / "foreign")
            certificate, key = ca.sign("server")
            if kind == "tls":
                files = f"tls {{ cert_file: '{certificate}', key_file: '{key}' }}"
                place = f"127.0.0.1:{stack.enter_context(NatsServer(settings=[files])).port}"
            else:
                (port,) = free_ports(1)
                paths = {
                    "tls-cert-file": certificate,
                    "tls-key-file": key,
                    "tls-ca-cert-file": ca.certificate,
                }
                settings = {"tls-port": str(port), **{name: str(file) for name, file in paths.items()}}
                stack.enter_context(RedisServer(settings))
                place = f"127.0.0.1:{port}/0"
        scheme = {"rabbitmq": "amqp"}.get(kind, kind)
        yield Refusal(url=f"{scheme}://{login}@{place}", words=REFUSALS[kind])


def soon_printed(environment: dict[str, str], *words: str) -> str:
    """The output of a command that tries to connect for a second."""
    module = WAITING.get(words[1])
    first = f"import {module} as waiting; waiting.CONNECT_SECONDS = 1; " if module else ""
    return printed(environment, *words, first=first)


async def pages(port: int, words: str) -> list[str]:
    """The texts of all pages, once /readyz says that the server refuses."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:

        async def is_refused() -> bool:
            try:
                return words in (await http.get("/readyz")).text.casefold()
            except httpx2.HTTPError:
                return False

        await wait_until_true("the server's refusal is at /readyz", is_refused)
        paths = [*PAGES, "/dead-letters", *(f"/api/v1/{name}" for name in API)]
        return [f"{path}: {(await http.get(path)).text}" for path in paths]


async def test_password_that_a_broker_refuses_is_nowhere(refusal: Refusal, tmp_path: Path) -> None:
    ports = free_ports(2)
    environment = {
        **base_environment(),
        "SOLSTICE_HOME": str(tmp_path),
        "AMQP_URL": refusal.url,
        "FORGEJO_WEBHOOK_SECRET": f"webhook-{MARK}",
        "FORGE_PORT": str(ports[0]),
        "ORCHESTRATOR_PORT": str(ports[1]),
        "ENQUEUE_CONNECT_SECONDS": "1",
        "LOG_LEVEL": "debug",
    }
    commands = [
        ("solstice", "enqueue", *COMMIT, "--amqp-url", f"{refusal.url}?password={MARK}"),
        ("solstice", "dlq", "list"),
        ("solstice", "topology", "check"),
        ("forge-integration", "statuses", "dead"),
    ]
    with (
        serving(environment, tmp_path / "forge.log", "forge-integration", "serve"),
        serving(environment, tmp_path / "orchestrator.log", "orchestrator", "run"),
    ):
        with ThreadPoolExecutor(len(commands)) as pool:
            reported = list(pool.map(lambda words: soon_printed(environment, *words), commands))
        for port in ports:
            reported += await pages(port, refusal.words.casefold())
    logs = [(tmp_path / name).read_text() for name in ("forge.log", "orchestrator.log")]
    for text in logs:
        assert refusal.words.casefold() in text.casefold()
    for text in (*reported, *logs):
        assert seen(text) == [], text[:200]
        assert "Traceback" not in text


def test_password_that_postgresql_refuses_is_nowhere(
    postgresql_database: ScratchDatabase, tmp_path: Path
) -> None:
    place = postgresql_database.url.rpartition("@")[2]
    login, tls = f"joe:{quote(WRONG, safe='')}", f"sslmode=verify-full&sslrootcert={tmp_path / 'none'}"
    urls = {
        "login": f"postgresql://{login}@{place}",
        "option": f"postgresql://joe@{place}?password={quote(WRONG, safe='')}",
        "certificate": f"postgresql://{login}@{place}?{tls}",
    }
    lines = [
        ("login", ("solstice", "store", "migrate")),
        ("login", ("forge-integration", "deliveries", "list")),
        ("login", ("forge-integration", "serve")),
        ("login", ("orchestrator", "run")),
        ("option", ("solstice", "store", "check")),
        ("certificate", ("solstice", "store", "check")),
    ]

    def output_of(line: tuple[str, tuple[str, ...]]) -> str:
        kind, words = line
        environment = {
            **base_environment(),
            "SOLSTICE_HOME": str(tmp_path / "state"),
            "AMQP_URL": f"sqlite:///{tmp_path / 'broker.sqlite'}",
            "DATABASE_URL": urls[kind],
            "FORGE_INBOX_URL": urls[kind],
            "LOG_LEVEL": "debug",
        }
        return printed(environment, *words)

    with ThreadPoolExecutor(4) as pool:
        reported = list(pool.map(output_of, lines))
    for (kind, _), text in zip(lines, reported, strict=True):
        assert ("password authentication failed" in text) == (kind != "certificate"), text
        assert seen(text) == [], text
        assert "Traceback" not in text
