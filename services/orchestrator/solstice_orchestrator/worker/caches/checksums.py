"""Digest the files of a checkout that the key of a cache names."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from solstice_common.values.globs import compiled, plain_parts
from solstice_orchestrator.worker.artifacts.sources import (
    MAX_ENTRIES,
    ArtifactSource,
    NoCollection,
    SourceFolder,
    shown,
)
from solstice_orchestrator.worker.caches.packing import MAX_DEPTH, CacheRefused

MAX_FILES: Final = 20_000
MAX_BYTES: Final = 1024**3
PIECE_BYTES: Final = 1024 * 1024
_GIT: Final = b".git"


def checksum(source: ArtifactSource, patterns: Sequence[str]) -> str:
    """Return the digest of the names and contents of all files that fit.

    Raises CacheRefused where a pattern fits none, and OSError.
    """
    found: set[bytes] = set()
    try:
        with source() as folder:
            for pattern in patterns:
                fitting = set(_Search(pattern).begin(folder))
                if not fitting:
                    raise CacheRefused(f"no file of the checkout fits {pattern!r}, which its key names")
                found |= fitting
            if len(found) > MAX_FILES:
                raise CacheRefused(f"its key names more than {MAX_FILES} files")
            return _digest(folder, sorted(found))
    except NoCollection as error:
        raise CacheRefused(error.why.detail) from None


class _Search:
    """The walk for one pattern."""

    def __init__(self, pattern: str) -> None:
        self._plain = [os.fsencode(part) for part in plain_parts(pattern)]
        self._pattern: re.Pattern[str] | None = None
        if b"/".join(self._plain) != os.fsencode(pattern):
            self._pattern = compiled(pattern)
        self._entries = 0

    def begin(self, folder: SourceFolder) -> Iterator[bytes]:
        return self._descend(folder, b"", self._plain)

    def _descend(self, folder: SourceFolder, above: bytes, parts: Sequence[bytes]) -> Iterator[bytes]:
        if not parts:
            yield from self._walk(folder, above, MAX_DEPTH)
            return
        name, *below = parts
        mode = folder.mode(name)
        if mode is None:
            return
        if stat.S_ISDIR(mode):
            if below or self._pattern:
                with folder.folder(name) as inner:
                    yield from self._descend(inner, above + name + b"/", below)
        elif not below and not self._pattern:
            yield above + name

    def _walk(self, folder: SourceFolder, above: bytes, depth: int) -> Iterator[bytes]:
        names = folder.names(MAX_ENTRIES + 1 - self._entries)
        self._entries += len(names)
        if self._entries > MAX_ENTRIES or not depth:
            raise CacheRefused("its key would have to look at too many files or directories")
        for name, is_folder in names:
            path = above + name
            if is_folder and path != _GIT:
                with folder.folder(name) as inner:
                    yield from self._walk(inner, path + b"/", depth - 1)
            elif not is_folder and self._pattern and self._pattern.fullmatch(os.fsdecode(path)):
                yield path


def _digest(folder: SourceFolder, paths: Sequence[bytes]) -> str:
    whole, left = hashlib.sha256(), MAX_BYTES
    for path in paths:
        content, size = _digest_of_file(folder, path.split(b"/"), path)
        left -= size
        if left < 0:
            raise CacheRefused(f"the files that its key names have more than {MAX_BYTES // 1024**2} MiB")
        whole.update(b"%d:%b%b" % (len(path), path, content))
    return whole.hexdigest()


def _digest_of_file(folder: SourceFolder, parts: Sequence[bytes], path: bytes) -> tuple[bytes, int]:
    name, *below = parts
    if below:
        with folder.folder(name) as inner:
            return _digest_of_file(inner, below, path)
    if stat.S_ISLNK(folder.mode(name) or 0):
        raise CacheRefused(f"{shown(path)}, which its key names, is a link")
    with folder.file(name, path) as file:
        if file.size > MAX_BYTES:
            raise CacheRefused(
                f"{shown(path)}, which its key names, has more than {MAX_BYTES // 1024**2} MiB"
            )
        digest = hashlib.sha256()
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
        return digest.digest(), file.size
