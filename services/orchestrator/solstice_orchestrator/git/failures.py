"""Decide who caused a git failure: the commit, the machine, or the host. Pure."""

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
"""Errors of our own system calls that no commit causes, such as starting git."""

_MACHINE: Final = re.compile(
    r"(?:No space left on device|Disk quota exceeded|Too many open files(?: in system)?|Cannot allocate memory|"
    r"Read-only file system|Resource temporarily unavailable|Input/output error|Out of diskspace)\s*$|"
    r"^(?:fatal|error): (?:cannot fork|unable to fork|fork failed|unable to create thread|cannot create async thread)",
    re.MULTILINE,
)
"""Messages of the system, which stand at the end of a line."""
_MEMORY: Final = re.compile(r"out of memory|realloc failed|mmap failed: cannot allocate", re.IGNORECASE)
_COMMIT: Final = re.compile(
    r"File name too long|fsck error|error in (?:tree|blob|commit|tag) |invalid path '|"
    r"bad tree object|malformed (?:mode|object name)|exceeded maximum allowed tree depth|"
    r"collid(?:ed|ing)|refusing to check ?out|is beyond a symbolic link|pack exceeds maximum allowed size"
)


def reason_of_stderr(stderr: str) -> Reason:
    """Return the reason for a failure of git, other than an absent repository.

    The commit is checked first: it chooses the file names that git quotes, and they must harm no one else.
    """
    local_text = _without_server_lines(stderr)
    if _COMMIT.search(local_text):
        return Reason.COMMIT_UNUSABLE
    if is_past_memory(stderr):
        return Reason.CHECKOUT_FAILED
    return Reason.MACHINE_FAILED if _MACHINE.search(local_text) else Reason.CHECKOUT_FAILED


def reason_of_local_stderr(stderr: str) -> Reason:
    """Return the reason for a failure of a local command on fetched objects.

    Such a command that exceeds its memory limit does so because of the commit.
    """
    return Reason.COMMIT_UNUSABLE if is_past_memory(stderr) else reason_of_stderr(stderr)


def is_past_memory(stderr: str) -> bool:
    """Whether git reached its memory limit.

    The fetched objects need that much on every machine; a machine without memory kills git, which then prints nothing.
    """
    return _MEMORY.search(_without_server_lines(stderr)) is not None


def is_machine(error: BaseException) -> bool:
    """Whether an error says that this machine lacks a resource."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    return isinstance(error, OSError) and error.errno in MACHINE_ERRORS


def _without_server_lines(stderr: str) -> str:
    """Remove the lines that the server wrote: a hostile one must not blame this machine."""
    return "\n".join(line for line in _LINE_END.split(stderr) if not _SERVER_LINE.match(line))


_LINE_END: Final = re.compile(r"[\r\n]")
"""Git marks each line of the server, and knows no other line ends."""
_SERVER_LINE: Final = re.compile(r"\s*(?:remote:|(?:fatal|error): remote error:|ERR )")
