"""Files are for their owner, and URLs are printed without their secrets."""

import os
import random
import stat
from pathlib import Path

import pytest

from solstice_common.broker.rabbitmq.rabbitmq_broker import RabbitMQBroker
from solstice_common.errors import ConfigurationError
from solstice_common.settings import without_password
from solstice_common.storage.postgresql import connected
from solstice_common.storage.sqlite import SqliteDatabase


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


@pytest.mark.parametrize("before", [None, 0o666], ids=["new", "made wide before"])
async def test_a_sqlite_file_is_for_its_owner_under_any_umask(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "state" / "store.db"
    if before is not None:
        path.parent.mkdir()
        path.touch()
        path.chmod(before)
    previous = os.umask(0)
    try:
        async with SqliteDatabase.open(path) as database:
            await database.write(lambda connection: connection.execute("CREATE TABLE x (y)").rowcount)
            found = modes(path.parent)
    finally:
        os.umask(previous)
    assert found == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    if before is None:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mark", ["#", "[", "]", "?", "/", "@", "%", ":"])
def test_no_part_of_a_password_is_printed(mark: str) -> None:
    shown = without_password(f"postgresql://heron:one{mark}two@db.example/solstice")
    assert "one" not in shown
    assert "two" not in shown


@pytest.mark.parametrize("mark", ["#", "[", "]", "?", "/"])
async def test_the_error_about_a_password_says_how_to_escape_it_and_does_not_show_it(mark: str) -> None:
    with pytest.raises(ConfigurationError) as reported:
        async with connected(f"postgresql://heron:otter{mark}reeds@127.0.0.1:1/solstice"):
            pass
    assert "otter" not in str(reported.value)
    assert "reeds" not in str(reported.value)
    assert "%23" in str(reported.value)


def test_options_of_the_broker_s_url_are_not_printed() -> None:
    url = "amqps://u:p@broker.example/%2f?name=hidden"
    broker = RabbitMQBroker(url, name="x", confirm_timeout_seconds=1.0, rng=random.Random(0))
    assert broker.url == "amqps://u@broker.example:5671/%2F"


def test_a_broker_s_password_that_cannot_be_read_is_not_reported() -> None:
    with pytest.raises(ConfigurationError) as reported:
        RabbitMQBroker(
            "amqp://u:one[two@broker.example:x/", name="x", confirm_timeout_seconds=1.0, rng=random.Random(0)
        )
    assert "one" not in str(reported.value)
    assert "%5B" in str(reported.value)
