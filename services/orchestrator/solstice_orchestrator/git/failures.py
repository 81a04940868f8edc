"""Which party causes a git failure: the commit, the worker's machine, or the host. Pure."""

import errno
import re
from typing import Final

from solstice_orchestrator.domain.jobs import Reason

MACHINE_ERRORS: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EROFS,
        errno.EIO,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.EACCES,
        errno.EPERM,
    }
)
"""Of a system call of ours, in directories of ours or to start git: no commit has a part in it."""

_MACHINE: Final = re.compile(
    r"(?:No space left on device|Disk quota exceeded|Too many open files(?: in system)?|Cannot allocate memory|"
    r"Read-only file system|Resource temporarily unavailable|Input/output error|Out of diskspace)\s*$|"
    r"^(?:fatal|error): (?:cannot fork|unable to fork|fork failed|unable to create thread|cannot create async thread)",
    re.MULTILINE,
)
"""At the end of a line, where the system's own words stand."""
_MEMORY: Final = re.compile(r"out of memory|realloc failed|mmap failed: cannot allocate", re.IGNORECASE)
_COMMIT: Final = re.compile(
    r"File name too long|fsck error|error in (?:tree|blob|commit|tag) |invalid path '|"
    r"bad tree object|malformed (?:mode|object name)|exceeded maximum allowed tree depth|"
    r"collid(?:ed|ing)|refusing to check ?out|is beyond a symbolic link|pack exceeds maximum allowed size"
)


def reason_of_stderr(said: str) -> Reason:
    """The reason for a failure of git that a repository's absence does not explain.

    The commit is asked first: it chooses the file names that git quotes, and may only harm itself by them.
    """
    ours = _without_server_lines(said)
    if _COMMIT.search(ours):
        return Reason.COMMIT_UNUSABLE
    if is_past_memory(said):
        return Reason.CHECKOUT_FAILED
    return Reason.MACHINE_FAILED if _MACHINE.search(ours) else Reason.CHECKOUT_FAILED


def of_local_words(said: str) -> Reason:
    """The same for a command that asks no host, on what was fetched: the memory it needs is the commit's doing."""
    return Reason.COMMIT_UNUSABLE if is_past_memory(said) else reason_of_stderr(said)


def is_past_memory(said: str) -> bool:
    """Whether git reached the memory limit that it was given.

    What it was sent needs that much, wherever it is tried; a machine without memory kills git, which then says nothing.
    """
    return _MEMORY.search(_without_server_lines(said)) is not None


def is_machine(error: BaseException) -> bool:
    """Whether this machine lacks what the work needs."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    return isinstance(error, OSError) and error.errno in MACHINE_ERRORS


def _without_server_lines(said: str) -> str:
    """Without the lines that the server wrote: a hostile one must not accuse this machine."""
    return "\n".join(line for line in said.replace("\r", "\n").splitlines() if not _SERVER_LINE.match(line))


_SERVER_LINE: Final = re.compile(r"\s*(?:remote:|(?:fatal|error): remote error:|ERR )")
