"""`forge-integration deliveries`: on both inboxes, also while the service runs."""

import asyncio
import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from solstice_common.broker import open_broker
from solstice_common.cli import running_up
from solstice_common.cli.running_up import RunningUp
from solstice_common.errors import ConfigurationError
from solstice_forge.cli import app
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.gitea_family import FORGEJO
from solstice_forge.inbox import open_inbox
from tests.inboxes import NOON, delivery
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import SECRET, push, received
from tests.servers.forks import run_command
from tests.servers.postgresql import ScratchDatabase
from tests.servers.service_process import base_environment

Command = Callable[..., tuple[int, str]]


@pytest.fixture(params=["sqlite", "postgresql"])
def inbox_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'inbox.db'}"
    database: ScratchDatabase = request.getfixturevalue("postgresql_database")
    return database.url


@pytest.fixture
def command(inbox_url: str) -> Command:
    """Run `forge-integration deliveries ...`; gives the exit code and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        environment = {"FORGE_INBOX_URL": inbox_url, "FORGEJO_WEBHOOK_SECRET": SECRET}
        result = CliRunner().invoke(app, ["deliveries", *words], env=environment)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return run


async def in_a_process(inbox_url: str, *words: str) -> tuple[int, str]:
    """The same as a process of its own."""
    environment = {**base_environment(), "FORGE_INBOX_URL": inbox_url, "FORGEJO_WEBHOOK_SECRET": SECRET}
    done = await asyncio.to_thread(run_command, "forge-integration", "deliveries", *words, env=environment)
    return done.returncode, done.stdout


async def test_why_a_push_was_not_built_is_answered(inbox_url: str, command: Command) -> None:
    async with open_inbox(inbox_url) as inbox:
        await inbox.keep(delivery("built", body=b'{"commits":[]}'))
        await inbox.keep(delivery("ping", asks=False, repository=None))
        await inbox.keep(delivery("built"))
    code, printed = await asyncio.to_thread(command, "list", "--json")
    listed = json.loads(printed)
    assert code == 0
    assert [(one["delivery_id"], one["decision"], one["reason"]) for one in listed["deliveries"]] == [
        ("built", "duplicate", "duplicate_delivery"),
        ("ping", "ignored", "ping"),
        ("built", "accepted", "push"),
    ]
    assert listed["next"] is None
    first = listed["deliveries"][2]["number"]
    _, lines = await asyncio.to_thread(
        command, "list", "--decision", "accepted", "--repository", "harbour/lighthouse"
    )
    (line,) = lines.splitlines()
    assert line.split("\t")[0] == str(first)
    assert line.endswith("waits for the broker (not sent yet)")
    _, shown = await asyncio.to_thread(command, "show", "built")
    assert f"delivery    {first}" in shown
    assert "accepted (push)" in shown
    assert "duplicate_delivery" in shown
    assert (await asyncio.to_thread(command, "show", str(first), "--body")) == (0, '{"commits":[]}')
    _, whole = await asyncio.to_thread(command, "show", str(first), "--json")
    assert json.loads(whole)["copies"][0]["number"] == listed["deliveries"][0]["number"]


async def test_list_goes_on_where_the_page_ended(inbox_url: str, command: Command) -> None:
    async with open_inbox(inbox_url) as inbox:
        for number in range(7):
            await inbox.keep(delivery(f"d-{number}"))
    names: list[str] = []
    page: list[str] = []
    while True:
        _, printed = await asyncio.to_thread(command, "list", "--json", "--limit", "3", *page)
        listed = json.loads(printed)
        names += [one["delivery_id"] for one in listed["deliveries"]]
        if listed["next"] is None:
            break
        page = ["--before", str(listed["next"])]
    assert names == [f"d-{number}" for number in reversed(range(7))]
    _, since = await asyncio.to_thread(command, "list", "--since", "2030-01-01T00:00:00Z", "--json")
    assert json.loads(since)["deliveries"] == []


async def test_name_that_steers_a_terminal_is_shown_as_text(inbox_url: str, command: Command) -> None:
    async with open_inbox(inbox_url) as inbox:
        await inbox.keep(delivery("d-1", repository="a\x1b]0;owned\x07/b\n[red]c", received_at=NOON))
    for words in (("list",), ("show", "d-1")):
        _, printed = await asyncio.to_thread(command, *words)
        assert "\x1b" not in printed
        assert "\x07" not in printed
        assert "a/b [red]c" in printed


async def test_replay_builds_the_commit_once_more_while_the_service_runs(
    inbox_url: str, make_settings: MakeSettings, running: Running
) -> None:
    settings = make_settings(forge_inbox_url=inbox_url)
    async with running(settings) as client, open_broker(settings.amqp_url, name="test") as broker:
        body, headers = push(1)
        first = (await client.post("/webhooks/forgejo", content=body, headers=headers)).json()
        (before,) = await received(broker, settings, 1)
        code, printed = await in_a_process(inbox_url, "replay", "delivery-1", "--json")
        replayed = json.loads(printed)
        assert (code, replayed["decision"], replayed["reason"]) == (0, "accepted", "replay")
        (after,) = await received(broker, settings, 1)
        assert (after.commit_sha, after.ref) == (before.commit_sha, before.ref)
        assert [after.request_id] == replayed["request_ids"] != first["request_ids"]
        assert (after.idempotency_key or "").startswith("replay:")
        _, shown = await in_a_process(inbox_url, "show", "delivery-1", "--json")
        (replay,) = json.loads(shown)["replays"]
        assert replay["delivery_id"] == replayed["delivery_id"]
        assert "asked for by" in replay["detail"]


@pytest.mark.parametrize(("rules", "decision"), [("", "accepted"), ("branches = ['release']", "ignored")])
async def test_replay_beside_up_takes_its_sources_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: str, decision: str
) -> None:
    """The secrets that `solstice up` made, and its file of sources, are not known here."""
    monkeypatch.setenv("SOLSTICE_HOME", str(tmp_path))
    monkeypatch.setenv("PLANTED", "a secret")
    config, url = tmp_path / "sources.toml", f"sqlite:///{tmp_path / 'inbox.db'}"
    config.write_text(
        f"[sources.forgejo]\nforge = 'forgejo'\nsecrets = ['env:PLANTED']\n[[sources.forgejo.rules]]\n{rules}\n"
    )
    body, headers = push(1)
    one = WebhookSource(name="forgejo", forge=FORGEJO, secrets=(SECRET,))
    understood = triage(one, headers, body, now=NOON)
    assert isinstance(understood, UnderstoodDelivery)
    async with open_inbox(url) as inbox:
        await inbox.keep(new_delivery(one, headers, understood, NOON))

    def replay() -> tuple[int, str]:
        result = CliRunner().invoke(app, ["deliveries", "replay", "1", "--json"])
        return result.exit_code, result.output

    assert (await asyncio.to_thread(replay))[0] != 0
    up = RunningUp(
        pid=7,
        page="http://p",
        webhooks="http://w",
        broker=None,
        inbox=url,
        store=None,
        forge_config=str(config) if rules else "",
    )
    running_up.write(tmp_path, up)
    with (tmp_path / running_up.LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, printed = await asyncio.to_thread(replay)
    assert (code, json.loads(printed)["decision"]) == (0 if decision == "accepted" else 1, decision)


async def test_replay_of_what_asked_for_nothing_says_so(inbox_url: str, command: Command) -> None:
    async with open_inbox(inbox_url) as inbox:
        await inbox.keep(delivery("ping", asks=False))
        await inbox.keep(delivery("elsewhere", source="unknown"))
    code, printed = await asyncio.to_thread(command, "replay", "ping")
    assert (code, "are stored without a body" in printed) == (1, True)
    code, printed = await asyncio.to_thread(command, "replay", "elsewhere")
    assert (code, "not configured" in printed) == (1, True)
    with pytest.raises(ConfigurationError, match="there is no delivery 'nothing'"):
        await asyncio.to_thread(command, "show", "nothing")


@pytest.mark.parametrize("since", ["yesterday", "3w", ""])
async def test_time_that_is_none_is_refused(command: Command, since: str) -> None:
    with pytest.raises(ConfigurationError, match="--since"):
        await asyncio.to_thread(command, "list", "--since", since)


async def test_purge_removes_bodies_or_all_of_what_is_old(inbox_url: str, command: Command) -> None:
    def purge(*words: str) -> dict[str, object]:
        result = CliRunner().invoke(app, ["purge", *words, "--json"], env={"FORGE_INBOX_URL": inbox_url})
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads(result.output)
        return found

    async with open_inbox(inbox_url) as inbox:
        await inbox.keep(delivery("old", received_at=1_600_000_000.0))
        await inbox.keep(delivery("ping", asks=False, received_at=1_600_000_000.0))
        await inbox.published([one.row_id for one in await inbox.pending(10)])
        await inbox.keep(delivery("stuck", received_at=1_600_000_000.0))
    assert await asyncio.to_thread(purge, "--older-than", "90d", "--dry-run") == {
        "deliveries": 2,
        "removed": False,
    }
    assert await asyncio.to_thread(purge, "--older-than", "90d", "--bodies") == {"bodies": 3, "removed": True}
    code, printed = await asyncio.to_thread(command, "replay", "old")
    assert (code, "was removed" in printed) == (1, True)
    assert await asyncio.to_thread(purge, "--older-than", "90d") == {"deliveries": 2, "removed": True}
    _, listed = await asyncio.to_thread(command, "list", "--json")
    assert [one["delivery_id"] for one in json.loads(listed)["deliveries"]] == ["stuck"]


def test_age_that_is_none_is_refused(inbox_url: str) -> None:
    result = CliRunner().invoke(app, ["purge", "--older-than", "soon"], env={"FORGE_INBOX_URL": inbox_url})
    assert isinstance(result.exception, ConfigurationError)
