"""A log of 100 MB, read by three while it is written."""

from pathlib import Path

import pytest

from tests.log_readers import READERS, write_and_read
from tests.servers.postgresql import ScratchDatabase

SIZE = 100_000_000
ROOM_KIB = 48 * 1024
"""Half of the written bytes: the server releases what was read. A server that kept it would need three times
100 MB.
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_three_readers_miss_nothing_of_a_growing_log(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database: ScratchDatabase | None = None
    if kind == "postgresql":
        database = request.getfixturevalue("postgresql_database")
    result = await write_and_read(tmp_path, SIZE, database_url=database.url if database else None)
    assert result.gaps
    assert len(result.readers) == READERS
    for reader in result.readers:
        assert reader.missing == result.gaps
        assert reader.sequences == result.written
    assert [reader.connections > 1 for reader in result.readers] == [False, True, True]
    assert result.peak_kib - result.before_kib < ROOM_KIB
