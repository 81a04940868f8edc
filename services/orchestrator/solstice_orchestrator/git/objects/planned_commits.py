"""Keeps small commits that planning has fetched, and composes their checkouts without git.

Planning has all files of a small commit already when its jobs start. Their checkouts are composed from these, in the
memory of this process, where no job can change them, and fetch nothing.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS
from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy
from solstice_orchestrator.git.objects.commit_checkout import composed_checkout
from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.objects.pack_file import LeftToGit, SmallPack

SHARE: Final = 16
"""The part of the object cache's limit that these commits may have, in memory."""
MAX_BYTES: Final = 32 * 1024**2
"""The most they may have."""


class _Planned(NamedTuple):
    source: SmallPack | CheckoutCopy
    """The fetched objects, and from the first checkout on its files."""
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

    async def find(self, key: CommitKey) -> CheckoutCopy | None:
        """Return the commit's checkout if it can be composed here."""
        planned = self._commits.get(key)
        if planned is None:
            return None
        if self._clock() - planned.came_at >= PROVEN_SECONDS:
            self._drop(key)
            return None
        if isinstance(planned.source, CheckoutCopy):
            self._commits.move_to_end(key)
            return planned.source
        try:
            copy = await asyncio.to_thread(composed_checkout, planned.source, key.repo_url, key.commit_sha)
        except LeftToGit:
            self._drop(key)
            return None
        if self._commits.get(key) is planned:
            self._put(key, planned._replace(source=copy))
        return copy

    def _put(self, key: CommitKey, planned: _Planned) -> None:
        self._drop(key)
        self._commits[key] = planned
        self._size_bytes += planned.source.size_bytes
        while self._size_bytes > self._max_bytes:
            self._drop(next(iter(self._commits)))

    def _drop(self, key: CommitKey) -> None:
        if dropped := self._commits.pop(key, None):
            self._size_bytes -= dropped.source.size_bytes
