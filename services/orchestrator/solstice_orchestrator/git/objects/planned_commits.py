"""Keeps small commits that planning has fetched, and writes their checkouts without git.

Planning has all files of a small commit already when its jobs start. Their checkouts are composed from these, in the
memory of this process, where no job can change them, and fetch nothing.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS
from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy, write_copy
from solstice_orchestrator.git.objects.commit_checkout import composed_checkout
from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.objects.pack_file import LeftToGit, SmallPack
from solstice_orchestrator.processes.completion import run_to_completion

SHARE: Final = 16
"""The part of the object cache's limit that these commits may have, in memory."""
MAX_BYTES: Final = 32 * 1024**2
"""The most they may have."""


class _Planned(NamedTuple):
    source: SmallPack | CheckoutCopy
    """The fetched objects, and from the first checkout on what is written."""
    came_at: float


class PlannedCommits:
    """The commits that were planned or used last.

    They have at most a small part of `cache_max_bytes`. A commit counts as proven for PROVEN_SECONDS: the right to read it may end.
    """

    def __init__(self, cache_max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = min(cache_max_bytes // SHARE, MAX_BYTES), clock
        self._commits: OrderedDict[CommitKey, _Planned] = OrderedDict()
        self._size_bytes = 0

    def keep(self, key: CommitKey, pack: SmallPack) -> None:
        """Keep the pack that planning has fetched just now, in which the commit is."""
        self._put(key, _Planned(pack, self._clock()))

    async def write(self, key: CommitKey, directory: Path) -> bool:
        """Put the commit's checkout into the empty directory; return whether that was possible here.

        Raises OSError.
        """
        planned = self._commits.get(key)
        if planned is None:
            return False
        if self._clock() - planned.came_at >= PROVEN_SECONDS:
            self._drop(key)
            return False
        try:
            copy = await run_to_completion(
                asyncio.to_thread(_write, planned.source, key, str(directory)), "planned checkout"
            )
        except LeftToGit:
            self._drop(key)
            return False
        if self._commits.get(key) is planned:
            self._put(key, planned._replace(source=copy))
        return True

    def _put(self, key: CommitKey, planned: _Planned) -> None:
        self._drop(key)
        self._commits[key] = planned
        self._size_bytes += planned.source.size_bytes
        while self._size_bytes > self._max_bytes:
            self._drop(next(iter(self._commits)))

    def _drop(self, key: CommitKey) -> None:
        if dropped := self._commits.pop(key, None):
            self._size_bytes -= dropped.source.size_bytes


def _write(source: SmallPack | CheckoutCopy, key: CommitKey, directory: str) -> CheckoutCopy:
    """Write the checkout; raises LeftToGit before anything is written."""
    if isinstance(source, SmallPack):
        source = composed_checkout(source, key.repo_url, key.commit_sha)
    write_copy(source, directory)
    return source
