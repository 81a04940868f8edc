"""A log of 10 MB, read by three while it is written (`./just bench readers` does it with 100 MB)."""

from pathlib import Path

import pytest

from tests.log_readers import READERS, tell
from tests.servers.postgresql import PostgreSQLDatabase

SIZE = 10_000_000
ROOM_KIB = 48 * 1024
"""Less than five times what is written: what is read is let go. A server that kept it for three readers would need 30 MB
in bytes alone, and several times as much as text and events."""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_three_readers_miss_nothing_of_a_growing_log(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database: PostgreSQLDatabase | None = None
    if kind == "postgresql":
        database = request.getfixturevalue("postgresql_database")
    story = await tell(tmp_path, SIZE, database_url=database.url if database else None)
    assert story.gaps
    assert len(story.readers) == READERS
    for reader in story.readers:
        assert reader.missing == story.gaps
        assert reader.sequences == story.written
    assert [reader.connections > 1 for reader in story.readers] == [False, True, True]
    assert story.peak_kib - story.before_kib < ROOM_KIB
