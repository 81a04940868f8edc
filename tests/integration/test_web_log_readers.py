"""A log of 100 MB, read by three while it is written."""

from pathlib import Path

import pytest

from tests.log_readers import READERS, tell
from tests.servers.postgresql import PostgreSQLDatabase

SIZE = 100_000_000
ROOM_KIB = 48 * 1024
"""Half of what is written: what was read is let go. A server that kept it would need three times 100 MB in bytes alone."""


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
