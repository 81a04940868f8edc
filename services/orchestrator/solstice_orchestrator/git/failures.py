"""Decide who caused a git failure: the commit, the machine, or the host. Pure."""

import errno
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.host_contact import GitEvent

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
_MEMORY: Final = re.compile(
    r"out of memory|realloc failed|mmap failed(?:%s)?: cannot allocate", re.IGNORECASE
)
_COMMIT: Final = re.compile(
    r"File name too long|fsck error|error in (?:tree|blob|commit|tag) |invalid path '|"
    r"bad tree object|malformed (?:mode|object name)|exceeded maximum allowed tree depth|"
    r"collid(?:ed|ing)|refusing to check ?out|is beyond a symbolic link|pack exceeds maximum allowed size|"
    r"unable to create symlink [^\n]*: No such file or directory"
)
"""No link has an empty target."""


_STACK_OVERFLOW: Final = -11
"""The exit code of a process that SIGSEGV ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitErrors:
    """What a git command said about its failure."""

    stderr: str = ""
    """It may quote file names of the commit and words of the server, with whole lines within them."""
    formats: tuple[str, ...] | None = None
    """The formats of git's own messages, into which nothing is quoted; None: git told none, or never started."""
    is_host_away: bool = False
    """Whether git's own messages say that the host gave no answer, or that it failed itself."""
    trouble: str = ""
    """What was wrong with the proxy on the way to the host, or with the credential."""
    is_credential_replaced: bool = False
    """Whether the host has refused the credential, and a later fetch has another one."""

    @property
    def text(self) -> str:
        """Everything git said, without the lines that the server wrote."""
        return "\n".join((_without_server_lines(self.stderr), *(self.formats or ())))


def reason_of(errors: GitErrors) -> Reason:
    """Return the reason for a failure of git, other than an absent repository.

    The commit is checked first, and the machine only by what no one else can write: a commit and a host choose words
    that git quotes, and must harm no one else with them.
    """
    if _COMMIT.search(errors.text):
        return Reason.COMMIT_UNUSABLE
    if is_past_memory(errors):
        return Reason.CHECKOUT_FAILED
    if errors.formats is None:
        is_of_machine = _MACHINE.search(_without_server_lines(errors.stderr))
    else:
        is_of_machine = _MACHINE.search("".join(f"error: {each}\n" for each in errors.formats))
    return Reason.MACHINE_FAILED if is_of_machine else Reason.CHECKOUT_FAILED


def reason_of_local(errors: GitErrors, returncode: int) -> Reason:
    """Return the reason for a failure of a local command on fetched objects.

    Such a command that exceeds its memory limit does so because of the commit, and so does one that exceeds its stack:
    git recurses into directories.
    """
    if returncode == _STACK_OVERFLOW or is_past_memory(errors):
        return Reason.COMMIT_UNUSABLE
    return reason_of(errors)


def is_past_memory(errors: GitErrors) -> bool:
    """Return whether git reached its memory limit.

    The fetched objects need that much on every machine; a machine without memory kills git, which then prints nothing.
    """
    return _MEMORY.search(errors.text) is not None


def read_formats(trace: bytes) -> tuple[str, ...] | None:
    """Return the formats of the errors in git's trace; None without any event.

    Source: git-scm.com/docs/api-trace2, "Event-Specific Key/Value Pairs".
    """
    if b"\n" not in trace:
        return None
    return tuple(dict.fromkeys(event.format for event in read_events(trace)))


def read_events(trace: bytes) -> Iterable[GitEvent]:
    """Yield the errors in git's trace, in their order."""
    for event in trace.split(b"\n")[:-1]:
        if event.startswith(b'{"event":"error"'):
            try:
                event_fields = json.loads(event.decode("utf-8", "replace"))
            except ValueError:
                continue
            yield GitEvent(format=str(event_fields.get("fmt", "")), message=str(event_fields.get("msg", "")))


def is_machine(error: BaseException) -> bool:
    """Return whether an error says that this machine lacks a resource."""
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
