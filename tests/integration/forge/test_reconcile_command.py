"""`forge-integration reconcile`: its output, exit codes, and advice when it cannot work."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_forge.cli import app
from solstice_forge.inbox import open_inbox
from tests.integration.forge.pushes import SECRET
from tests.servers.forge_api import TOKEN, ForgeApi, forge_api
from tests.servers.forge_record import HookRecord, show_heads

Command = Callable[..., Result]
OTTER = "river/otter"
SHA = "0a" * 20


def table(forge: ForgeApi) -> str:
    return (
        f'[sources.{forge.origin.value}]\nforge = "{forge.origin.value}"\nurl = "{forge.url}"\n'
        f'secrets = ["plain:{SECRET}"]\ntoken = "plain:{TOKEN}"\n'
        f'[[sources.{forge.origin.value}.rules]]\nrepositories = ["{OTTER}"]\n'
    )


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run it with these sources; its inbox is the test's."""

    def run(config: str, *words: str) -> Result:
        file = tmp_path / "sources.toml"
        file.write_text(config)
        environment = {"FORGE_INBOX_URL": f"sqlite:///{tmp_path / 'inbox.db'}", "FORGE_CONFIG": str(file)}
        # As in `program.run`: a command reports by its output, not by its log.
        with capture_logs():
            result = CliRunner().invoke(app, ["reconcile", *words], env=environment)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


async def test_it_says_what_it_did_and_whom_it_could_not_ask(command: Command) -> None:
    async with forge_api(Source.GITHUB) as hub, forge_api(Source.GITEA) as tea:
        record = HookRecord(hub, url=lambda: "http://127.0.0.1:9/webhooks/github", secret=SECRET)
        record.failed(record.hook(f"repos/{OTTER}"), "lost", status=503)
        show_heads(tea)
        result = await asyncio.to_thread(command, table(hub) + table(tea))
        assert result.exit_code == 1
        assert result.stdout.splitlines() == [
            "gitea: 0 repositories: 1 problem",
            "github: 1 repository: 1 delivery asked for again",
            f"  again  {OTTER}  push  lost  (503 failed to connect to host; time 1)",
        ]
        assert f"{OTTER}: 404 Not Found" in result.stderr
        # Progress goes to another stream than the result.
        assert f"github: {OTTER}" in result.stderr
        tea.refs[OTTER, "refs/heads/main"] = SHA
        result = await asyncio.to_thread(command, table(hub) + table(tea), "--json")
        assert result.exit_code == 0
        gitea, github = json.loads(result.stdout)
        assert (gitea["baseline"], github["waiting"], github["sent"]) == (1, 1, [])
        await record.settled()


async def test_one_source_and_repository_are_chosen(command: Command) -> None:
    async with forge_api(Source.GITHUB) as hub, forge_api(Source.GITEA) as tea:
        show_heads(tea)
        tea.refs["sea/gull", "refs/heads/main"] = SHA
        words = ("--source", "gitea", "--repository", "sea/gull", "--dry-run")
        result = await asyncio.to_thread(command, table(hub) + table(tea), *words)
        assert (result.exit_code, result.stdout) == (
            0,
            "gitea: 1 repository: 1 met for the first time, not built\n",
        )
        assert hub.calls == []


async def test_a_second_start_reports_the_running_one(command: Command, tmp_path: Path) -> None:
    async with (
        forge_api(Source.GITEA) as tea,
        open_inbox(f"sqlite:///{tmp_path / 'inbox.db'}") as inbox,
    ):
        assert await inbox.reconcile_state.claim("gitea", "another", now=0.0, until=1e12)
        result = await asyncio.to_thread(command, table(tea))
        assert result.exit_code == 1
        assert "another process" in result.stderr
        assert tea.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--source", "gitlab"), "the source 'gitlab' is not known here"),
        (("--since", "3"), "--since: '3' is no age"),
        (("--since", "0d"), "--since: '0d' is no age"),
        (("--repository", "otter"), "is not written OWNER/NAME"),
        (("--repository", OTTER), "of which source"),
    ],
)
def test_what_cannot_be_meant_is_refused(command: Command, words: tuple[str, ...], message: str) -> None:
    config = "".join(
        f'[sources.{name}]\nforge = "gitea"\nurl = "http://127.0.0.1:9"\nsecrets = ["plain:{SECRET}"]\n'
        f'token = "plain:{TOKEN}"\n'
        for name in ("one", "two")
    )
    with pytest.raises(ConfigurationError, match=message):
        command(config, *words)


def test_without_any_token_it_says_where_to_put_one(command: Command) -> None:
    config = f'[sources.one]\nforge = "gitea"\nsecrets = ["plain:{SECRET}"]\n'
    with pytest.raises(ConfigurationError, match="give it url and token"):
        command(config)
