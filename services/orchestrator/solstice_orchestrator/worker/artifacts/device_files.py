"""Open the files that a virtual machine (VM) has written to its device for artifacts.

The device is a file with archives of tar, one after the other, and a mark behind the last (guest_artifacts.sh). The job
was root beside it, so every byte may be hostile. No content is read before an artifact needs it: an index of what is where
is made first, in memory and time that MAX_NAMES bounds. What is read later is no more than that says, also when the
device changes meanwhile.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.worker.artifacts.outputs import FILE
from solstice_orchestrator.worker.artifacts.sources import (
    NoCollection,
    expect_plain_file,
    refused,
)
from solstice_orchestrator.worker.artifacts.tar_headers import (
    BLOCK,
    HARD_LINK,
    KINDS,
    LONG_NAME,
    LONG_TARGET,
    BadHeader,
    TarHeader,
    read_header,
)

WHOLE: Final = b"whole"
"""The name of the mark, which is not below `./` as all others are."""
OUTPUTS: Final = os.fsencode(FILE)
"""The name of the file of outputs, which is not below it either."""
MAX_NAMES: Final = 100_000
"""Files and folders of all artifacts of a job."""
MAX_PATH: Final = 4096
MAX_NAME: Final = 255
BLOCKS_PER_NAME: Final = 4
"""For its header, those of two longer ones, and some of what ends archives."""
_OPENED: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_WHOLE: Final = (
    "its VM has not handed out all files that may fit: they have no room on its device, or could not be packed; "
    "the job's log says more"
)


class _Entry(NamedTuple):
    """What is known of an entry that is no directory."""

    mode: int
    offset: int = 0
    size: int = 0
    is_whole: bool = True


_Tree = dict[bytes, "_Entry | _Tree"]


@dataclass(slots=True)
class DeviceFiles:
    """Opens what is on a device (`sources.ArtifactSource`); the device is indexed once."""

    path: Path
    _index: "_Index | None" = None

    @contextmanager
    def written(self) -> Iterator["_Folder"]:
        """Open a folder with the file of outputs alone, if there is one (`sources.ArtifactSource`)."""
        with self() as folder:
            found = self._index.written if self._index else None
            yield _Folder(folder.descriptor, {} if found is None else {OUTPUTS: found})

    @contextmanager
    def __call__(self) -> Iterator["_Folder"]:
        descriptor = os.open(self.path, _OPENED)
        try:
            self._index = self._index or _indexed(descriptor)
            yield _Folder(descriptor, self._index.tree)
            # Only now: what is there may say more about what is wrong.
            if not self._index.is_whole:
                raise NoCollection(Reason.ARTIFACT_REFUSED, _NOT_WHOLE)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Folder:
    descriptor: int
    tree: _Tree

    def mode(self, name: bytes) -> int | None:
        found = self.tree.get(name)
        if isinstance(found, dict):
            return stat.S_IFDIR
        return None if found is None else found.mode

    def names(self, most: int) -> Sequence[tuple[bytes, bool]]:
        return [(name, isinstance(each, dict)) for name, each in islice(self.tree.items(), most)]

    @contextmanager
    def folder(self, name: bytes) -> Iterator["_Folder"]:
        inner = self.tree[name]
        assert isinstance(inner, dict)  # noqa: S101  the caller knows it from `mode` or `names`
        yield _Folder(self.descriptor, inner)

    @contextmanager
    def file(self, name: bytes, path: bytes) -> Iterator["_File"]:
        entry = self.tree[name]
        assert isinstance(entry, _Entry)  # noqa: S101  as above
        expect_plain_file(entry.mode, path)
        yield _File(self.descriptor, entry)


@dataclass(slots=True)
class _File:
    descriptor: int
    entry: _Entry
    done: int = 0

    @property
    def size(self) -> int:
        return self.entry.size

    @property
    def is_executable(self) -> bool:
        return bool(self.entry.mode & stat.S_IXUSR)

    def read(self, most: int) -> bytes:
        if not self.entry.is_whole:
            raise NoCollection(Reason.ARTIFACT_REFUSED, _NOT_WHOLE)
        piece = os.pread(self.descriptor, min(most, self.size - self.done), self.entry.offset + self.done)
        self.done += len(piece)
        return piece

    def has_changed(self) -> bool:
        """Return no: its size is that of the index, its content the job's."""
        return False


def _indexed(descriptor: int) -> "_Index":
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise NoCollection(Reason.ARTIFACT_REFUSED, "the device of its VM is no plain file any more")
    index = _Index(descriptor, status.st_size)
    try:
        index.read()
    except BadHeader as error:
        raise NoCollection(
            Reason.ARTIFACT_REFUSED,
            f"the device of its VM has no archive as our agent writes it: {error} (byte {index.position})",
        ) from None
    return index


@dataclass(slots=True)
class _Index:
    """What is where on a device."""

    descriptor: int
    length: int
    position: int = 0
    tree: _Tree = field(default_factory=dict)
    is_whole: bool = False
    names: int = 0
    written: _Entry | None = None
    """The file of outputs."""

    def read(self) -> None:
        """Read headers up to the mark, or as long as there are any."""
        long_names: dict[bytes, bytes] = {}
        for _ in range(BLOCKS_PER_NAME * MAX_NAMES):
            if self.position + BLOCK > self.length:
                return
            header = read_header(os.pread(self.descriptor, BLOCK, self.position))
            if header is None:
                self.position += BLOCK
                continue
            if header.type in {LONG_NAME, LONG_TARGET}:
                if header.type in long_names or header.size > MAX_PATH + 1:
                    raise BadHeader("it is one long name too many, or longer than paths are")
                content = os.pread(self.descriptor, header.size, self.position + BLOCK)
                long_names[header.type] = content.partition(b"\0")[0]
            else:
                if long_names:
                    header = header._replace(
                        name=long_names.pop(LONG_NAME, header.name),
                        target=long_names.pop(LONG_TARGET, header.target),
                    )
                if header.name == WHOLE:
                    self.is_whole = True
                    return
                if header.name == OUTPUTS and self.written is None:
                    self.written = self._entry(header)
                else:
                    self._add(header)
            self.position += BLOCK + -(-header.size // BLOCK) * BLOCK

    def _add(self, header: TarHeader) -> None:
        *above, name = _parts(header.name)
        tree = self.tree
        for part in above:
            if part not in tree:
                self._count()
            inner = tree.setdefault(part, {})
            if not isinstance(inner, dict):
                raise refused(_path(header.name), "is below what is no directory")
            tree = inner
        if name in tree:
            raise refused(_path(header.name), "is on the device of the VM twice")
        self._count()
        tree[name] = self._entry(header)

    def _entry(self, header: TarHeader) -> _Entry:
        if header.type == HARD_LINK:
            return self._linked(header)
        kind = KINDS.get(header.type)
        if kind is None:
            raise BadHeader(f"an entry of the type {header.type!r}")
        if kind != stat.S_IFREG:
            if header.size:
                raise BadHeader("an entry with a size that is no file")
            # As the script in the VM says that it is a socket, for which tar has no type.
            is_socket = kind == stat.S_IFCHR and header.device == (0, 0)
            return _Entry(stat.S_IFSOCK if is_socket else kind)
        offset = self.position + BLOCK
        return _Entry(kind | header.mode & 0o777, offset, header.size, offset + header.size <= self.length)

    def _linked(self, header: TarHeader) -> _Entry:
        """Return the file of which an entry is another name."""
        found: _Entry | _Tree | None = self.tree
        for part in _parts(header.target):
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, _Entry) or header.size:
            raise refused(_path(header.name), "is a link to nothing on the device of the VM")
        return found

    def _count(self) -> None:
        self.names += 1
        if self.names > MAX_NAMES:
            raise NoCollection(
                Reason.ARTIFACT_REFUSED,
                f"the job's artifacts have more than {MAX_NAMES} files and folders; let a step pack them",
            )


def _path(name: bytes) -> bytes:
    return name.removeprefix(b"./")


def _parts(name: bytes) -> Sequence[bytes]:
    """Return the parts of a path below `./`, as no other one is written."""
    first, *parts = name.split(b"/")
    if (
        first != b"."
        or not parts
        or any(part in {b"", b".", b".."} or len(part) > MAX_NAME for part in parts)
    ):
        raise refused(name, "is no path in the workspace of the VM")
    return parts
