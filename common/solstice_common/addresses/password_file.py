"""Reads the password of a server from its file."""

import stat
from pathlib import Path
from typing import Final

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.telemetry.log_events import LogEvent

LARGEST_BYTES: Final = 4096

log = structlog.get_logger(__name__)


def read_password(path: str) -> str:
    """Return the one line of a file, as it is now.

    ConfigurationError names the file when it cannot be read, or holds no password.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        password = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None
    if not password or len(content) > LARGEST_BYTES or any(sign in password for sign in "\n\0"):
        raise _unusable(path, f"it is not one line of at most {LARGEST_BYTES} bytes")
    return password


def check_password_file(path: str | None) -> None:
    """Read the file, if any; log when all users of the machine may read it.

    Raises ConfigurationError, as `read_password` does.
    """
    if path is None:
        return
    read_password(path)
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & stat.S_IRWXO:
        log.warning(
            LogEvent.FILE_MODE_TOO_WIDE,
            path=path,
            mode=f"{mode:04o}",
            detail=f"every user of this machine may read the broker's password: chmod o= {path}",
        )


def _unusable(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"AMQP_PASSWORD_FILE: {path} cannot be used ({why}): write the password, and nothing else, to a file "
        "that this user can read"
    )
