"""Keeps the objects of fetched commits: further checkouts of a commit fetch nothing.

A checkout gets a copy of them, never a link: what a job does to its own repository changes nothing here. The cache
itself is no secret from jobs that run as this user, and they can change its files. Therefore their digests are kept in
the memory of this process, and each copy is compared with them; a file that differs is dropped, and the commit fetched.
Runs that are trusted and runs that are not share nothing, nor do runs whose commits other credentials have fetched.

A new commit of a repository is fetched into a copy of the one that was used last by such runs: the git host sends only
what differs. The two share files of the cache.

The cache lies in the orchestrator's own directory and ends with it: nothing is read that another process has left.
"""

import asyncio
import hashlib
import math
import os
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from solstice_common.messages import JobRequestV1
from solstice_common.runtime.private_paths import restore_private_directory
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS, CredentialChoice
from solstice_orchestrator.git.repository import directory_bytes
from solstice_orchestrator.processes.completion import run_to_completion

P = ParamSpec("P")
T = TypeVar("T")

PIECE_BYTES: Final = 1024 * 1024
SMALL_BYTES: Final = 256 * 1024
"""So few bytes are copied without a thread, which would take longer."""
PACKS: Final = Path("objects", "pack")
_KINDS: Final = frozenset({".pack", ".idx"})
MAX_PACKS: Final = 16
"""A commit with more packs than this is no base of another: the next one is fetched as a whole."""
KNOWN_REF: Final = Path("refs", "solstice", "known")
"""Tells git, which tells the git host, which commit is here already."""
_MAY_SUCCEED_ALONE: Final = frozenset({Reason.CHECKOUT_FAILED, Reason.COMMIT_UNUSABLE})


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

    def can_build_on(self, other: "CommitKey") -> bool:
        """Return whether a fetch of this commit may build on the other one."""
        return not self.spec.may_change and self._replace(commit_sha=other.commit_sha) == other


class FetchTarget(NamedTuple):
    """The repository into which a commit is fetched, and what it had before."""

    git_dir: Path
    bytes_before: int = 0


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
        self._targets: dict[CommitKey, FetchTarget] = {}

    async def provide(self, key: CommitKey, git_dir: Path, fetch: Callable[[], Awaitable[None]]) -> None:
        """Put the commit's objects into an empty repository.

        One checkout at a time calls `fetch`, which must put them there in packs; others wait for it. Raises what `fetch`
        raises.
        """
        if self._max_bytes == 0:
            return await fetch()
        if await self._copied_proven(key, git_dir):
            return None
        async with self._fetching.setdefault(key, asyncio.Lock()):
            if await self._copied_proven(key, git_dir):
                return None
            base = await self._copied_base(key, git_dir)
            self._targets[key] = FetchTarget(git_dir, directory_bytes(git_dir / "objects"))
            requested_at = self._clock()
            if base is not None and key.spec.depth == 0:
                # git asks no host for a commit that is in the history of the base.
                requested_at = self._requested_at.get(base, -math.inf)
            try:
                await (fetch() if base is None else self._fetch_on(base, git_dir, fetch))
            finally:
                del self._targets[key]
            await self._save(key, git_dir, base, requested_at)
        return None

    def is_proven(self, key: CommitKey) -> bool:
        """Return whether the commit is here, and was fetched a short time ago."""
        return key in self._commits and self._clock() - self._requested_at[key] < PROVEN_SECONDS

    def fetched_into(self, key: CommitKey, git_dir: Path) -> FetchTarget:
        """Return the repository into which the commit is fetched now; `git_dir` when none is."""
        return self._targets.get(key, FetchTarget(git_dir))

    async def _copied_base(self, key: CommitKey, git_dir: Path) -> CommitKey | None:
        """Copy a commit on which the fetch of this one can build; return that."""
        for base, files in reversed(self._commits.items()):
            if key.can_build_on(base):
                total, packs = _size_of(files), [file for file in files if file.name.suffix == ".pack"]
                # A small commit is fetched as fast as what differs. Of long histories much may be needed no more.
                is_fit = total > SMALL_BYTES and len(packs) <= MAX_PACKS
                is_fit = is_fit and total <= 2 * max((pack.size_bytes for pack in packs), default=0)
                is_fit = is_fit and (key.spec.depth > 0 or self.is_proven(base))
                return base if is_fit and await self._copied(base, git_dir) else None
        return None

    async def _fetch_on(self, base: CommitKey, git_dir: Path, fetch: Callable[[], Awaitable[None]]) -> None:
        """Fetch into a repository that has the base, and without it if that fails."""
        known = git_dir / KNOWN_REF
        known.parent.mkdir(parents=True)
        known.write_text(f"{base.commit_sha}\n", encoding="ascii")
        try:
            await fetch()
        except CheckoutFailed as error:
            if error.host_away or error.reason not in _MAY_SUCCEED_ALONE:
                raise
            # The server may be confused by what is here, or both together exceed the disk limit.
            self._drop(base, self._commits.get(base, ()))
            await asyncio.to_thread(_clear, git_dir)
            await fetch()
        finally:
            shutil.rmtree(known.parent, ignore_errors=True)

    async def _copied_proven(self, key: CommitKey, git_dir: Path) -> bool:
        """Copy the commit's objects if they were fetched a short time ago."""
        if key in self._commits and not self.is_proven(key):
            self._drop(key, self._commits[key])
        return await self._copied(key, git_dir)

    async def _copied(self, key: CommitKey, git_dir: Path) -> bool:
        """Copy the commit's objects; return False without them, or if they were changed."""
        files = self._commits.get(key)
        if files is None:
            return False
        self._commits.move_to_end(key)
        try:
            await _run(_size_of(files), _copy_all, files, git_dir)
        except (OSError, _Changed):
            self._drop(key, files)
            for file in files:
                (git_dir / file.name).unlink(missing_ok=True)
            return False
        return True

    async def _save(self, key: CommitKey, git_dir: Path, base: CommitKey | None, requested_at: float) -> None:
        """Store the commit's objects, and drop those of others that were used longest ago.

        Those of the base stay, and both share its packs.
        """
        found = _files_of(git_dir)
        if not found:
            return
        of_base = {file.name: file for file in self._commits.get(base, ())} if base else {}
        shared = [of_base[name] for name, _ in found if name.suffix in _KINDS and name in of_base]
        names = {file.name for file in shared}
        copies = [
            (name, self._directory / secrets.token_hex(16), size) for name, size in found if name not in names
        ]
        total = sum(size for _, _, size in copies)
        for other, files in list(self._commits.items()):
            if total + self._size <= self._max_bytes:
                break
            if other != base:
                self._drop(other, files)
        if total + self._size > self._max_bytes:
            return
        try:
            restore_private_directory(self._directory, above=3)
            stored = await _run(total, _stored, copies, git_dir)
            # The base may have been dropped meanwhile, with its files.
            if shared and not set(shared) <= set(self._files()):
                _remove(file.copy for file in stored)
                return
            self._commits[key] = (*shared, *stored)
            self._requested_at[key] = requested_at
        except OSError:
            # The disk is full, most likely, and jobs need it more.
            _remove(copy for _, copy, _ in copies)
            for each in list(self._commits.items()):
                self._drop(*each)

    @property
    def _size(self) -> int:
        return sum({file.copy: file.size_bytes for file in self._files()}.values())

    def _files(self) -> Iterator[CachedFile]:
        return (file for files in self._commits.values() for file in files)

    def _drop(self, key: CommitKey, files: Sequence[CachedFile]) -> None:
        # Another checkout may have dropped it already, and stored it again.
        if self._commits.get(key) is files:
            del self._commits[key]
            del self._requested_at[key]
            used = {file.copy for file in self._files()}
            _remove(file.copy for file in files if file.copy not in used)


async def _run(size_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run `work` on files of this size to its end, in a thread if large."""
    if size_bytes <= SMALL_BYTES:
        return work(*arguments, **options)
    return await run_to_completion(asyncio.to_thread(work, *arguments, **options), "object cache")


def _size_of(files: Iterable[CachedFile]) -> int:
    return sum(file.size_bytes for file in files)


def _clear(git_dir: Path) -> None:
    """Remove all objects from a repository."""
    shutil.rmtree(git_dir / "objects")
    (git_dir / "objects").mkdir()
    for name in ("shallow", "shallow.lock"):
        (git_dir / name).unlink(missing_ok=True)


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
