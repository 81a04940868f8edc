"""Read tree entries and files of commits from a local repository, without fetching."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from solstice_orchestrator.git.command import CheckoutFailed, Git, GitResult, stderr_tail
from solstice_orchestrator.git.failures import reason_of_local

MAX_FILE_BYTES: Final = 1024 * 1024
"""The most bytes read of a file; callers may have a lower limit."""
MAX_LISTING_BYTES: Final = 1024 * 1024

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


async def entries_of_roots(
    git: Git, shas: Sequence[str], paths: Sequence[str]
) -> Mapping[str, Entries] | None:
    """Return the entries of commits without parents; None when the list is too long.

    (git lists a directory with all entries in it.)
    """
    listed = await git.run(
        *("diff-tree", "--stdin", "--root", "-r", "-t", "-z", "--no-renames", "--no-abbrev", "--", *paths),
        input_bytes="".join(f"{sha}\n" for sha in shas).encode(),
        max_output=MAX_LISTING_BYTES,
    )
    if len(listed.stdout) == MAX_LISTING_BYTES:
        return None
    _must(listed)
    entries: dict[str, dict[str, TreeEntry]] = {sha: {} for sha in shas}
    of_commit: dict[str, TreeEntry] = {}
    fields = iter(listed.stdout.split(b"\0"))
    for field in fields:
        if field.startswith(b":"):
            # ":000000 100644 0{40} <id> A", and the path in a field of its own (git-diff-tree(1), "Raw output format")
            _, mode, _, blob, _ = field.decode("ascii").split(" ")
            of_commit[next(fields).decode("utf-8", "surrogateescape")] = TreeEntry(mode=mode, blob=blob)
        elif field:
            of_commit = entries[field.decode("ascii").strip()]
    return {sha: {path: entries[sha][path] for path in paths if path in entries[sha]} for sha in shas}


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
    """Whether the commit's whole tree has more than `most` paths.

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
    read = await git.converse(
        "cat-file", "--batch", input_bytes="".join(f"{blob}\n" for blob in ids).encode(), read=_contents
    )
    _must(read)
    return read.stdout


async def _contents(stream: asyncio.StreamReader) -> Mapping[str, bytes]:
    """Parse the output of `git cat-file --batch`.

    It is "<id> blob <size>", the content and a newline, or "<id> missing".
    """
    contents = {}
    while words := (await stream.readline()).decode("ascii").split():
        if words[-1] == "missing":
            continue
        content, left = bytearray(), int(words[2])
        while left and (piece := await stream.read(min(left, 64 * 1024))):
            left -= len(piece)
            content += piece[: MAX_FILE_BYTES - len(content)]
        await stream.read(1)
        contents[words[0]] = bytes(content)
    return contents


def _must(read: GitResult[bytes] | GitResult[Mapping[str, bytes]]) -> None:
    if read.returncode != 0:
        raise CheckoutFailed(
            reason_of_local(read.errors, read.returncode),
            f"what was fetched cannot be read: {stderr_tail(read.stderr)}",
        )
