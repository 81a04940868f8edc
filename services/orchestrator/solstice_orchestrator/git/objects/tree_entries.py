"""Read tree entries and files of commits from a local repository, also after a fetch."""

import asyncio
import contextlib
import posixpath
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from solstice_orchestrator.git.command import CheckoutFailed, Git, GitResult, stderr_tail
from solstice_orchestrator.git.failures import reason_of_local
from solstice_orchestrator.git.objects.pack_file import (
    DIRECTORY,
    GitObject,
    LeftToGit,
    SmallPack,
    read_pack_of,
    tree_entry,
)
from solstice_orchestrator.git.repository import object_format

MAX_FILE_BYTES: Final = 1024 * 1024
"""The most bytes read of a file; callers may have a lower limit."""
MAX_LISTING_BYTES: Final = 1024 * 1024
"""The most bytes read of a directory, which are about 25,000 entries."""

COUNT_SECONDS: Final = 30.0
"""The time limit for counting paths; git lists about a million paths a second."""

_OTHER_KINDS: Final = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a directory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """The mode and the object id at a path."""

    mode: str
    blob: str

    @property
    def is_plain_file(self) -> bool:
        return self.mode not in _OTHER_KINDS

    @property
    def kind(self) -> str:
        """The kind of the entry, in words."""
        return _OTHER_KINDS.get(self.mode, "a plain file")


Entries: TypeAlias = Mapping[str, TreeEntry]
"""Entries by path, without absent paths."""


_READ: Final = ("cat-file", "--batch")


class _Unlisted(Exception):
    """A directory is too large to be read whole, or is not here."""


Found: TypeAlias = tuple[Mapping[str, Entries], Mapping[str, bytes]]
"""The entries of each commit, and contents of blobs by their ids."""


async def fetch_paths(
    git: Git,
    fetch: Sequence[str],
    shas: Sequence[str],
    paths: Sequence[str],
    needed: Callable[[str, Entries], Collection[str]],
    *,
    keep: Callable[[SmallPack], None] | None = None,
) -> GitResult[Found | None]:
    """Fetch, and return each commit's entries with the contents of `needed` blobs.

    Blobs that are not here are left out. A fetch that fails has no output. A commit with a very large directory takes
    a few more git processes. With `keep`, which is for small repositories, what comes is read without git where that is
    possible, and `keep` gets it.
    """
    paths = [path for path in paths if posixpath.normpath(path) == path]
    directories = dict.fromkeys(directory for path in paths for directory in _directories(path))
    names = list(dict.fromkeys([*directories, *paths]))
    entries: dict[str, Entries] = {}
    contents: dict[str, bytes] = {}

    def add(sha: str, objects: Mapping[str, GitObject | None]) -> None:
        with contextlib.suppress(_Unlisted):
            found = {path: _entry(objects, path) for path in paths}
            entries[sha] = {path: entry for path, entry in found.items() if entry}
            blobs = needed(sha, entries[sha])
            contents.update({each.id: each.content for each in objects.values() if each and each.id in blobs})

    async def read(stream: asyncio.StreamReader) -> Found:
        # One commit after the other: a directory may be as large as the limit for it.
        for sha in shas:
            add(sha, {name: await _next_object(stream) for name in names})
        return entries, contents

    def read_here(keep: Callable[[SmallPack], None]) -> Found:
        pack = read_pack_of(git.git_dir, object_format(shas[0]))
        for sha in shas:
            add(sha, pack.at_paths(sha, names))
        keep(pack)
        return entries, contents

    requested = _lines(f"{sha}:{name}" for sha in shas for name in names)
    if keep is None:
        fetched = await git.run_then(fetch, _READ, input_bytes=requested, read=read)
    else:
        fetched = await _fetch_small(git, fetch, requested, read, partial(read_here, keep))
    if fetched.stdout is not None:
        _must(fetched)
        for sha in shas:
            if sha not in entries:
                entries[sha] = await entries_of(git, sha, paths)
                contents.update(await read_blobs(git, needed(sha, entries[sha])))
    return fetched


async def _fetch_small(
    git: Git,
    fetch: Sequence[str],
    requested: bytes,
    read: Callable[[asyncio.StreamReader], Coroutine[Any, Any, Found]],
    read_here: Callable[[], Found],
) -> GitResult[Found | None]:
    """Fetch, and read without git unless that raises LeftToGit."""
    fetched = await git.run(*fetch, writes=True)
    if fetched.returncode != 0:
        return GitResult(returncode=fetched.returncode, stdout=None, errors=fetched.errors)
    try:
        return GitResult(returncode=0, stdout=read_here(), errors=fetched.errors)
    except LeftToGit:
        done = await git.converse(*_READ, input_bytes=requested, read=read)
        return GitResult(returncode=done.returncode, stdout=done.stdout, errors=done.errors)


def _directories(path: str) -> Sequence[str]:
    """Return the directories above a path, from the root, which is the empty name."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _entry(of_commit: Mapping[str, GitObject | None], path: str) -> TreeEntry | None:
    """Return the entry at the path, None without one; raises _Unlisted."""
    entry = None
    for directory, name in zip(_directories(path), path.split("/"), strict=True):
        if entry is not None and entry.mode != DIRECTORY:
            return None
        tree = of_commit[directory]
        if tree is None:
            raise _Unlisted
        entry = _entry_in(tree, name)
        if entry is None:
            return None
    return entry


def _entry_in(tree: GitObject, name: str) -> TreeEntry | None:
    if entry := tree_entry(tree, name):
        return TreeEntry(mode=entry[0], blob=entry[1])
    if len(tree.content) < tree.size:
        raise _Unlisted
    return None


async def entries_of(git: Git, sha: str, paths: Iterable[str]) -> Entries:
    """Return the entries of any one commit, with one git process for each path."""
    entries = {}
    for path in paths:
        listed = await git.run("ls-tree", "-z", "--full-tree", sha, "--", path)
        _must(listed)
        entry, _, _ = listed.stdout.partition(b"\0")
        if entry:
            mode, _, blob = entry.partition(b"\t")[0].decode("ascii").split(" ")
            entries[path] = TreeEntry(mode=mode, blob=blob)
    return entries


async def has_more_paths(git: Git, sha: str, most: int) -> bool:
    """Return whether the commit's whole tree has more than `most` paths.

    False when COUNT_SECONDS are too short to know.
    """
    counted = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(COUNT_SECONDS) as limit:

            async def count(stream: asyncio.StreamReader) -> None:
                nonlocal counted
                while piece := await stream.read(64 * 1024):
                    counted += piece.count(b"\0")
                    if counted > most and not limit.expired():
                        limit.reschedule(0)

            await git.converse("ls-tree", "-r", "-z", "--name-only", sha, input_bytes=b"", read=count)
    return counted > most


async def read_blobs(git: Git, blobs: Iterable[str]) -> Mapping[str, bytes]:
    """Return the first MAX_FILE_BYTES of each blob that is here, by its id."""
    ids = list(dict.fromkeys(blobs))
    if not ids:
        return {}
    done = await git.converse(*_READ, input_bytes=_lines(ids), read=partial(_blobs, count=len(ids)))
    _must(done)
    return done.stdout


async def fetch_blobs(
    git: Git, fetch: Sequence[str], blobs: Sequence[str]
) -> GitResult[Mapping[str, bytes] | None]:
    """Fetch, and read as `read_blobs` does. A fetch that fails has no output."""
    fetched = await git.run_then(
        fetch, _READ, input_bytes=_lines(blobs), read=partial(_blobs, count=len(blobs))
    )
    if fetched.stdout is not None:
        _must(fetched)
    return fetched


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


async def _blobs(stream: asyncio.StreamReader, count: int) -> Mapping[str, bytes]:
    objects = [await _next_object(stream) for _ in range(count)]
    return {each.id: each.content for each in objects if each}


async def _next_object(stream: asyncio.StreamReader) -> GitObject | None:
    """Read an object from `git cat-file --batch`; None: it is not here.

    Its output is "<id> <kind> <size>", the content and a newline, or "<name> missing".
    """
    words = (await stream.readline()).split()
    if len(words) != len(("id", "kind", "size")):
        return None
    object_id, kind, size = (word.decode("ascii") for word in words)
    most = MAX_LISTING_BYTES if kind == "tree" else MAX_FILE_BYTES
    content, left = bytearray(), int(size)
    while left and (piece := await stream.read(min(left, 64 * 1024))):
        left -= len(piece)
        content += piece[: most - len(content)]
    await stream.read(1)
    return GitObject(id=object_id, size=int(size), content=bytes(content))


def _must(read: GitResult[Any]) -> None:
    if read.returncode != 0:
        raise CheckoutFailed(
            reason_of_local(read.errors, read.returncode),
            f"what was fetched cannot be read: {stderr_tail(read.stderr)}",
        )
