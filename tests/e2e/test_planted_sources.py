"""The secrets of FORGE_CONFIG are on no page, and in no log, file or row."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from solstice_common.messages import Source
from tests.e2e.test_planted_secrets import API, PAGES, PASSWORD, printed, seen
from tests.polling import wait_until_true
from tests.servers.forge_api import Reply, Request, forge_api
from tests.servers.solstice_up import SolsticeUp, repository, solstice_up
from tests.used_folders import files_in_use

TOKEN = f"token-{PASSWORD}"
SOURCES = """
[sources.acme]
forge = "gitlab"
url = "{url}"
secrets = ["env:ACME_SECRET", "file:acme.secret"]
token = "file:acme.token"

[sources.hub]
forge = "github"
url = "{url}"
secrets = ["plain:{secret}"]
app = {{ id = 7, private_key = "file:hub.pem" }}
"""
pytestmark = pytest.mark.timeout(400)  # many processes start, also on a busy machine

WORKFLOW = {".solstice/workflow.kdl": 'job "a" { step run="env"; }'}


def echo(request: Request) -> Reply:
    """A forge that repeats the credentials that it refuses."""
    return Reply(status=403, document={"message": f"go away, {request.token}"})


def private_key() -> str:
    return (
        rsa.generate_private_key(65537, 2048)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        .decode()
    )


def rows(file: Path) -> str:
    """All rows of a SQLite file, as text."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        queries = [f"SELECT * FROM {name}" for name in names]  # noqa: S608  names of our own tables
        values = [value for query in queries for row in database.execute(query) for value in row]
    return "\n".join(
        value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values
    )


def stored(up: SolsticeUp) -> list[str]:
    """The rows of each SQLite file of `up`."""
    return [rows(file) for file in files_in_use(up.home) if file.suffix in {".sqlite", ".sqlite3"}]


async def is_stored(up: SolsticeUp, words: str) -> bool:
    return words in "".join(await asyncio.to_thread(stored, up))


async def test_secrets_of_the_sources_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, secrets = tmp_path / "sources", {"ACME_SECRET": f"acme-{PASSWORD}", "HUB": f"hub-{PASSWORD}"}
    sources.mkdir()
    project = repository(tmp_path / "anvil", WORKFLOW)
    key = private_key()
    for name, text in {"acme.secret": f"other-{PASSWORD}", "acme.token": TOKEN, "hub.pem": key}.items():
        (sources / name).write_text(text)
    monkeypatch.setenv("ACME_SECRET", secrets["ACME_SECRET"])
    async with forge_api(Source.GITLAB) as forge:
        forge.behave(echo)
        config = SOURCES.format(url=forge.url, secret=secrets["HUB"])
        (sources / "forges.toml").write_text(config)
        options = ("--forge-config", str(sources / "forges.toml"), "--log-level", "debug")
        with solstice_up(tmp_path / "home", *options) as up:

            async def output_of(*words: str, **settings: str) -> str:
                environment = {**up.environment, **secrets, **settings}
                return await asyncio.to_thread(printed, environment, *words)

            change = ("--repo-url", str(project.folder), "--repo-full-name", "river/anvil")
            sent = [
                output_of(
                    *("solstice", "webhook", "send", "--source", source, *change, f"{up.webhooks}/{name}"),
                    SOLSTICE_WEBHOOK_SECRET=secret,
                )
                for source, name, secret in (
                    ("gitlab", "acme", secrets["ACME_SECRET"]),
                    ("github", "hub", secrets["HUB"]),
                    ("gitlab", "acme", f"{PASSWORD} wrong"),
                )
            ]
            reported = await asyncio.gather(*sent)
            assert [text.split()[2] for text in reported] == ["202", "202", "401"], reported
            await wait_until_true("the forge's refusal is stored", lambda: is_stored(up, "go away, ***"))
            commands = (
                ("deliveries", "list"),
                ("deliveries", "show", "1"),
                ("statuses", "dead"),
                ("reconcile",),
            )
            reported += await asyncio.gather(*(output_of("forge-integration", *words) for words in commands))
            for base in (up.webhooks.removesuffix("/webhooks"), up.page):
                async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
                    reported += [
                        (await http.get(path)).text for path in (*PAGES, *(f"/api/v1/{name}" for name in API))
                    ]
            in_rows = stored(up)
        assert TOKEN in {request.headers.get("private-token") for request, _ in forge.calls}
    assert len(in_rows) == 3
    files = [each.read_bytes().decode(errors="replace") for each in files_in_use(up.home)]
    for text in (*reported, *in_rows, *files):
        assert seen(text, *key.splitlines()[1:3]) == [], text[:200]
        assert "Traceback" not in text
