"""Keeps the objects of fetched commits: further checkouts of a commit fetch nothing.

A checkout gets a copy of them, never a link: what a job does to its own repository changes nothing here. The cache
itself is no secret from jobs that run as this user, and they can change its files. Therefore their digests are kept in
the memory of this process, and each copy is compared with them; a file that differs is dropped, and the commit fetched.
Runs that are trusted and runs that are not share nothing, nor do runs whose commits other credentials have fetched.

The cache lies in the orchestrator's own directory and ends with it: nothing is read that another process has left.
"""

import asyncio
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from solstice_common.messages import JobRequestV1
from solstice_common.runtime.private_paths import restore_private_directory
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS, CredentialChoice
from solstice_orchestrator.processes.completion import run_to_completion

P = ParamSpec("P")
T = TypeVar("T")

PIECE_BYTES: Final = 1024 * 1024
SMALL_BYTES: Final = 256 * 1024
"""So few bytes are copied without a thread, which would take longer."""
PACKS: Final = Path("objects", "pack")
_KINDS: Final = frozenset({".pack", ".idx"})


class CommitKey(NamedTuple):
    """What checkouts must have in common to share objects."""

    repo_url: str
    commit_sha: str
    trusted: bool
    credential: CredentialChoice
    spec: CheckoutSpec = PLAIN_CHECKOUT
    request_id: str | None = None
    """The request whose run shares what may change at the forge."""

    @classmethod
    def of(cls, request: JobRequestV1, policy: GitPolicy, spec: CheckoutSpec = PLAIN_CHECKOUT) -> "CommitKey":
        """Return the key of a request's commit.

        A request that does not say so is not trusted.
        """
        return cls(
            request.repo_url,
            request.commit_sha,
            request.trusted is True,
            policy.credentials.choice(request),
            spec,
            request.request_id if spec.may_change else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile:
    """A file of a repository, its copy in the cache, and the digest of both."""

    name: Path
    """Below the repository."""
    copy: Path
    size_bytes: int
    digest: bytes


class _Changed(Exception):
    """A file of the cache is not as it was stored."""


class ObjectCache:
    """The objects of the commits that were used last.

    They have at most `max_bytes`; with 0 there is no cache. A commit is fetched again after PROVEN_SECONDS: the right to
    read it may have ended.
    """

    def __init__(self, directory: Path, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory, self._max_bytes, self._clock = directory, max_bytes, clock
        self._commits: OrderedDict[CommitKey, Sequence[CachedFile]] = OrderedDict()
        """The files of each commit, the commit that was used last at the end."""
        self._requested_at: dict[CommitKey, float] = {}
        """When each commit was requested from its host."""
        self._fetching: WeakValueDictionary[CommitKey, asyncio.Lock] = WeakValueDictionary()
        self._places: dict[CommitKey, Path] = {}

    async def provide(self, key: CommitKey, git_dir: Path, fetch: Callable[[], Awaitable[None]]) -> None:
        """Put the commit's objects into an empty repository.

        One checkout at a time calls `fetch`, which must put them there in packs; others wait for it. Raises what `fetch`
        raises.
        """
        if self._max_bytes == 0:
            return await fetch()
        if await self._copied(key, git_dir):
            return None
        async with self._fetching.setdefault(key, asyncio.Lock()):
            if await self._copied(key, git_dir):
                return None
            self._places[key] = git_dir
            requested_at = self._clock()
            try:
                await fetch()
            finally:
                del self._places[key]
            await self._save(key, git_dir, requested_at)
        return None

    def is_proven(self, key: CommitKey) -> bool:
        """Return whether the commit is here, and was fetched a short time ago."""
        return key in self._commits and self._clock() - self._requested_at[key] < PROVEN_SECONDS

    def fetched_into(self, key: CommitKey, git_dir: Path) -> Path:
        """Return the repository into which the commit is being fetched for `git_dir`, mostly that itself."""
        return self._places.get(key, git_dir)

    async def _copied(self, key: CommitKey, git_dir: Path) -> bool:
        """Copy the commit's objects; return False without them, or if they were changed."""
        files = self._commits.get(key)
        if files is None:
            return False
        if not self.is_proven(key):
            self._drop(key, files)
            return False
        self._commits.move_to_end(key)
        try:
            await _run(sum(file.size_bytes for file in files), _copy_all, files, git_dir)
        except (OSError, _Changed):
            self._drop(key, files)
            for file in files:
                (git_dir / file.name).unlink(missing_ok=True)
            return False
        return True

    async def _save(self, key: CommitKey, git_dir: Path, requested_at: float) -> None:
        """Store the commit's objects, and drop those of others that were used longest ago."""
        found = _files_of(git_dir)
        total = sum(size for _, size in found)
        if not found or total > self._max_bytes:
            return
        while self._commits and total + self._size > self._max_bytes:
            self._drop(*next(iter(self._commits.items())))
        copies = [(name, self._directory / secrets.token_hex(16), size) for name, size in found]
        try:
            restore_private_directory(self._directory, above=3)
            self._commits[key] = await _run(total, _stored, copies, git_dir)
            self._requested_at[key] = requested_at
        except OSError:
            # The disk is full, most likely, and jobs need it more.
            _remove(copy for _, copy, _ in copies)
            for each in list(self._commits.items()):
                self._drop(*each)

    @property
    def _size(self) -> int:
        return sum(file.size_bytes for files in self._commits.values() for file in files)

    def _drop(self, key: CommitKey, files: Sequence[CachedFile]) -> None:
        # Another checkout may have dropped it already, and stored it again.
        if self._commits.get(key) is files:
            del self._commits[key]
            del self._requested_at[key]
            _remove(file.copy for file in files)


async def _run(size_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run `work` on files of this size to its end, in a thread if large."""
    if size_bytes <= SMALL_BYTES:
        return work(*arguments, **options)
    return await run_to_completion(asyncio.to_thread(work, *arguments, **options), "object cache")


def _files_of(git_dir: Path) -> Sequence[tuple[Path, int]]:
    """Return the names and sizes of what a fetch has written.

    Return nothing when it is not all in packs.
    """
    if any(path.name not in {"pack", "info"} for path in (git_dir / "objects").iterdir()):
        return ()
    packs = [path for path in (git_dir / PACKS).iterdir() if path.suffix in _KINDS]
    beside = [path for path in (git_dir / "shallow", git_dir / "packed-refs") if path.exists()]
    return [(path.relative_to(git_dir), path.stat().st_size) for path in (*packs, *beside)]


def _stored(copies: Sequence[tuple[Path, Path, int]], git_dir: Path) -> Sequence[CachedFile]:
    files = []
    for name, copy, expected_bytes in copies:
        size_bytes, digest = _copied(git_dir / name, copy, expected_bytes)
        files.append(CachedFile(name=name, copy=copy, size_bytes=size_bytes, digest=digest))
    return files


def _copy_all(files: Sequence[CachedFile], git_dir: Path) -> None:
    """Copy files into a repository; raises _Changed for one that is different."""
    (git_dir / PACKS).mkdir(exist_ok=True)
    for file in files:
        if _copied(file.copy, git_dir / file.name, file.size_bytes) != (file.size_bytes, file.digest):
            raise _Changed


def _copied(source: Path, target: Path, expected_bytes: int) -> tuple[int, bytes]:
    """Copy a file; return the size and the digest of the copy.

    Not much more than the expected bytes are copied.
    """
    size_bytes, digest = 0, hashlib.sha256()
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        while size_bytes <= expected_bytes and (piece := reading.read(PIECE_BYTES)):
            size_bytes += len(piece)
            digest.update(piece)
            while piece:
                piece = piece[writing.write(piece) :]
    return size_bytes, digest.digest()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
