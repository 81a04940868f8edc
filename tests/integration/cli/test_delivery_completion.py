"""The shell is offered the numbers of deliveries, and makes no inbox by asking."""

import asyncio
from pathlib import Path

import pytest
import typer

from solstice_common.cli.completion.candidates import candidates
from solstice_forge.cli import app
from solstice_forge.inbox import open_inbox
from tests.inboxes import delivery, keep_in_one_batch


def offered(command: str, typed: str) -> list[tuple[str, str]]:
    found = candidates(typer.main.get_command(app), "forge-integration", ["deliveries", command], typed)
    return [(each.value, each.help) for each in found or ()]


@pytest.mark.parametrize("command", ["show", "replay"])
def test_numbers_are_offered_newest_first_with_what_they_are(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/inbox.sqlite3"
    monkeypatch.setenv("FORGE_INBOX_URL", url)

    async def received() -> None:
        async with open_inbox(url) as inbox:
            await keep_in_one_batch(inbox, delivery("a"), delivery("b", asks=False, repository=None))

    asyncio.run(received())
    push, ping = ("1", "push of harbour/lighthouse, accepted"), ("2", "push of forgejo, ignored")
    assert offered(command, "") == [ping, push]
    assert offered(command, "1") == [push]
    assert offered(command, "3") == []


def test_an_inbox_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_INBOX_URL", f"sqlite:///{tmp_path}/inbox.sqlite3")
    assert offered("show", "") == []
    assert list(tmp_path.iterdir()) == []
