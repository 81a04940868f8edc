"""Makes files and directories that only their owner may use.

It also narrows the modes of those that an older version made.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

import structlog

from solstice_common.runtime.private_paths import OWNER_ONLY, OWNERS_DIRECTORY, make_private_directory
from solstice_common.settings import state_directory
from solstice_common.telemetry.log_events import LogEvent

_OTHERS: Final = 0o077

log = structlog.get_logger(__name__)


def open_private(path: Path, flags: int) -> int:
    """Open a file that only we may use from now on.

    OSError ELOOP for a symbolic link and EPERM for a file of another user: its maker would choose what we read, or
    which file we write to.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, OWNER_ONLY)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a symbolic link, and is not followed", str(path)) from None
    try:
        status = os.fstat(descriptor)
        is_owned = status.st_uid == os.geteuid()
        if is_owned and status.st_mode & _OTHERS:
            os.fchmod(descriptor, OWNER_ONLY)
            _narrowed(path, status.st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    if not is_owned:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, f"it belongs to the user {status.st_uid}", str(path))
    return descriptor


def narrow(path: Path) -> None:
    """Allow a file to its owner alone, if it exists.

    A file of another user is left unchanged.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        mode = path.stat().st_mode
        if mode & _OTHERS:
            path.chmod(OWNER_ONLY)
            _narrowed(path, mode)


def make_state_directory() -> Path:
    """Make the state directory (0700), or check it; OSError when that fails."""
    path = state_directory()
    make_private_directory(path)
    check_state_directory()
    return path


def check_state_directory() -> None:
    """Narrow the default state directory; only report one that the operator named.

    Only we make the default one; another may be `/srv`.
    """
    path = state_directory()
    try:
        status = path.stat()
    except OSError:
        return  # its user reports what is wrong
    if not stat.S_ISDIR(status.st_mode) or not status.st_mode & _OTHERS:
        return
    if "SOLSTICE_HOME" not in os.environ and status.st_uid == os.geteuid():
        path.chmod(OWNERS_DIRECTORY)
        _narrowed(path, status.st_mode)
    else:
        log.info(
            LogEvent.FILE_MODE_TOO_WIDE,
            path=str(path),
            mode=f"{stat.S_IMODE(status.st_mode):04o}",
            detail=f"others see the names of its files; if it is for Solstice alone: chmod 700 {path}",
        )


def _narrowed(path: Path, mode: int) -> None:
    log.info(LogEvent.FILE_MODE_NARROWED, path=str(path), before=f"{stat.S_IMODE(mode):04o}")
