"""What artifacts are collected from: folders and files that a job has left.

All of it is hostile. A source follows no link, and gives the content of plain files alone.
"""

import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from solstice_orchestrator.domain.jobs import Reason

MAX_ENTRIES: Final = 200_000
"""Names that are looked at for one artifact."""
MAX_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCollected:
    """Why there is no archive; `reason` says who can change that."""

    reason: Reason
    detail: str


class NoCollection(Exception):
    """The collection ended without an archive."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.why = NotCollected(reason=reason, detail=detail)


class SourceFile(Protocol):
    """A plain file that is read from its beginning."""

    @property
    def size(self) -> int: ...

    @property
    def is_executable(self) -> bool:
        """Whether its owner may execute it."""
        ...

    def read(self, most: int) -> bytes:
        """Return the next bytes; none at its end."""
        ...

    def has_changed(self) -> bool:
        """Return whether it is another one than when it was opened."""
        ...


class SourceFolder(Protocol):
    """A folder; its methods raise OSError, or NoCollection for what no artifact may have."""

    def mode(self, name: bytes) -> int | None:
        """Return what a name is, as stat(2) says it; None: nothing."""
        ...

    def names(self, most: int) -> Sequence[tuple[bytes, bool]]:
        """Return up to so many names, each with whether it is a folder."""
        ...

    def folder(self, name: bytes) -> AbstractContextManager["SourceFolder"]: ...

    def file(self, name: bytes, path: bytes) -> AbstractContextManager[SourceFile]:
        """Open a file; `path` is its name for people."""
        ...


ArtifactSource = Callable[[], AbstractContextManager[SourceFolder]]
"""Opens the workspace, as the steps have left it."""


def shown(path: bytes) -> str:
    """Return a path for people, also when its bytes are no text."""
    text = path.decode("utf-8", "backslashreplace")
    readable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return readable if len(readable) <= MAX_SHOWN else f"{readable[:MAX_SHOWN]}..."


def refused(path: bytes, what: str) -> NoCollection:
    """Return the end of a collection by what a job has left."""
    return NoCollection(Reason.ARTIFACT_REFUSED, f"{shown(path)} {what}")


def expect_plain_file(mode: int, path: bytes) -> None:
    """Raise NoCollection for what is no plain file."""
    if not stat.S_ISREG(mode):
        raise refused(path, f"is {_kind(mode)}, and plain files alone are taken")


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a directory now"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((words for is_kind, words in kinds if is_kind(mode)), "a device")
