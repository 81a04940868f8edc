"""Reads the files of keys, and reads them again whenever they change.

Public keys with their scopes are in one file, which only its owner may write. A private key is in a file of
its own, which only its owner may read.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.runtime.private_paths import make_private_directory, private_opener
from solstice_common.runtime.replaced_file import OTHERS_WRITE, file_state, replace_file
from solstice_common.signing.keys import SigningKey, VerifyKey, parse_private, parse_public, public_document
from solstice_common.telemetry.log_events import LogEvent

log = structlog.get_logger(__name__)

T = TypeVar("T")

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KeyFile(Generic[T]):
    """The current content of a key file, parsed by `read`.

    A file that cannot be used, or is missing, changes nothing: the keys that were read last stay valid, and
    one log line per such state of the file says so. Raises ConfigurationError when it cannot be read the
    first time.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._state = file_state(path)
        self._content = read(path)

    def current(self) -> T:
        """The current keys; the file is read only when its inode or times have changed."""
        state = file_state(self._path)
        if state != self._state:
            self._state = state
            try:
                self._content = self._read(self._path)
            except ConfigurationError as error:
                # An expected failure: one line, not a traceback.
                log.error(LogEvent.KEYS_UNREADABLE, path=str(self._path), detail=str(error))  # noqa: TRY400
            else:
                log.info(LogEvent.KEYS_READ, path=str(self._path))
        return self._content


def read_public(path: Path) -> Mapping[str, VerifyKey]:
    """The public keys in a file, by name; ConfigurationError says what is wrong with it."""
    mode, content = _content(path, "VERIFY_KEYS")
    if mode & OTHERS_WRITE:
        raise ConfigurationError(
            f"VERIFY_KEYS {path}: is not used, since others may write to the file: chmod go-w {path}"
        )
    try:
        return {key.name: key for key in parse_public(content)}
    except ValueError as error:
        raise ConfigurationError(f"VERIFY_KEYS {path}: {error}") from None


def read_private(path: Path) -> Sequence[SigningKey]:
    """Return the private keys in a file.

    ConfigurationError says what is wrong with it, and never contains a key.
    """
    mode, content = _content(path, "SIGNING_KEYS")
    if mode & _OTHERS:
        raise ConfigurationError(
            f"SIGNING_KEYS {path}: is not used, since others may read the file: chmod 600 {path}"
        )
    try:
        return parse_private(content)
    except ValueError as error:
        raise ConfigurationError(f"SIGNING_KEYS {path}: {error}") from None


def change_public(path: Path, decide: Callable[[Sequence[VerifyKey]], Sequence[VerifyKey]]) -> None:
    """Write the keys that `decide` returns for the present ones, under a lock.

    Without a file there are none. Durable on return, and a reader sees the old file or the new one.
    ConfigurationError when it cannot be written.
    """

    def content() -> bytes:
        present = list(read_public(path).values()) if path.exists() else []
        return public_document(decide(present))

    try:
        replace_file(path, content)
    except OSError as error:
        raise ConfigurationError(f"VERIFY_KEYS {path}: cannot be written: {error.strerror}") from None


def write_private(path: Path, text: str) -> None:
    """Write a new private key for its owner alone.

    ConfigurationError when there is such a file already.
    """
    try:
        make_private_directory(path.parent)
    except OSError as error:
        raise ConfigurationError(
            f"the folder {path.parent} cannot be made for the private key: {error.strerror}"
        ) from None
    try:
        file = open(path, "x", encoding="ascii", opener=private_opener)  # noqa: SIM115  closed below
    except FileExistsError:
        raise ConfigurationError(
            f"{path} exists already: name another file with --to, or remove that one if nothing signs with it"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the private key cannot be written to {path}: {error.strerror}") from None
    try:
        with file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # An incomplete file would block the next try.
        path.unlink(missing_ok=True)
        raise ConfigurationError(f"the private key cannot be written to {path}: {error.strerror}") from None


def _content(path: Path, setting: str) -> tuple[int, bytes]:
    """Return the mode and content of a file."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise ConfigurationError(f"{setting} {path}: cannot be read: {error.strerror}") from None
