"""A spool that the disk cannot take says so, and what to do."""

import resource
from collections.abc import Iterator

import pytest

from solstice_common.broker.rabbitmq.frames import UnreadHeader, content_header
from solstice_common.broker.rabbitmq.tools.spooled_messages import (
    SPOOLED_BYTES,
    BegunMessage,
    NoRoom,
    Spool,
)
from solstice_common.broker.rabbitmq.tools.tool_connection import NO_PROPERTIES

PIECE = bytes(4000)
"""So little that it waits in a buffer, which can then not be flushed."""


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit the size of files: a full disk fails a write alike."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPOOLED_BYTES + 100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def spool_twice_as_much_as_memory_takes() -> None:
    pieces = SPOOLED_BYTES // len(PIECE) * 2
    header = UnreadHeader(content_header(NO_PROPERTIES, pieces * len(PIECE)))
    with Spool(whole=True) as spool:
        spool.begin(BegunMessage(tag=1, redelivered=False, header=header))
        for _ in range(pieces):
            spool.add(PIECE)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_named_with_what_to_do() -> None:
    with pytest.raises(NoRoom, match="set TMPDIR"):
        spool_twice_as_much_as_memory_takes()
