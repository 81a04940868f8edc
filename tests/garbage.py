"""Lets tests lose connections of nats-py, without other tests being blamed for it.

`asyncio.wait_for` of Python 3.11, with which nats-py connects, can lose a connection that stands in the moment it is
cancelled. Python closes the socket when it collects its garbage. A module whose tests may cause this has
LOST_CONNECTIONS in its `pytestmark`, and imports `garbage_of_this_test`.
"""

import gc
from collections.abc import Iterator
from typing import Final

import pytest

LOST_CONNECTIONS: Final = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def garbage_of_this_test() -> Iterator[None]:
    """Collect the garbage of each test before the next one begins."""
    yield
    gc.collect()
