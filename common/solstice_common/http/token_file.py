"""Keeps tokens in a file, and reads it again whenever it changes.

The file is written whole or not at all, for its owner alone.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from solstice_common.errors import ConfigurationError
from solstice_common.http.tokens import NAME, Token, TokenScope
from solstice_common.messages.fields import Timestamp
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.times import format_seconds, parse_timestamp
from solstice_common.validation import in_words

log = structlog.get_logger("solstice_common.http.token_file")

OWNER_ONLY: Final = 0o600
_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Tokens = tuple[Token, ...]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    scopes: Annotated[list[TokenScope], Field(min_length=1)]
    created_at: Timestamp
    expires_at: Timestamp | None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[_Entry]


class TokenFile:
    """The tokens of a file, as they are now.

    A file that cannot be read, or that others may write to, changes nothing: the tokens that were read last stay
    valid, and the log says so once for every such state of the file. A file that is not there holds no tokens.
    Raises ConfigurationError when it cannot be read the first time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_state = _state(path)
        self._tokens = read(path)
        self._had_tokens = bool(self._tokens) or self._file_state is not None

    @property
    def ever_had_tokens(self) -> bool:
        """Whether the file ever held a token, as far as this process knows.

        That is so when the file exists, or existed while this process ran.

        Only 'solstice token' makes the file, and never without a token: an empty one lost its last. Deleting the file,
        and starting the services anew, says that this machine is to be answered without tokens again.
        """
        return self._had_tokens

    def current(self) -> Tokens:
        """The current tokens.

        Looks at the file's inode and times, and reads it only when they have changed.
        """
        file_state = _state(self.path)
        if file_state != self._file_state:
            self._file_state = file_state
            self._had_tokens = self._had_tokens or file_state is not None
            try:
                self._tokens = read(self.path)
            except ConfigurationError as error:
                log.error(  # noqa: TRY400  a state of the world: one line, not a traceback
                    LogEvent.TOKENS_UNREADABLE,
                    path=str(self.path),
                    detail=str(error),
                    tokens=[token.name for token in self._tokens],
                )
            else:
                log.info(
                    LogEvent.TOKENS_READ,
                    path=str(self.path),
                    tokens=[token.name for token in self._tokens],
                )
        return self._tokens


def read(path: Path) -> Tokens:
    """The tokens in the file, none when there is no file.

    ConfigurationError says what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            mode, body = os.fstat(file.fileno()).st_mode, file.read()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigurationError(f"the tokens in {path} cannot be read: {error.strerror}") from None
    if mode & _OTHERS_WRITE:
        raise ConfigurationError(
            f"the tokens in {path} are not used, since others may write to the file: chmod 600 {path}"
        )
    try:
        entries = _Document.model_validate_json(body).tokens
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigurationError(
            f"the tokens in {path} cannot be used ({where or 'file'}: {in_words(problem)}): mend the file, or remove it and "
            "make new ones with 'solstice token create'"
        ) from None
    return tuple(_token(entry) for entry in entries)


def change(path: Path, decide: Callable[[Tokens], Sequence[Token]]) -> None:
    """Write what `decide` makes of the present tokens, under a lock.

    Durable on return, and a reader sees the old file or the new one. ConfigurationError when it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_name(path.name + ".lock")):
            _replace(path, decide(read(path)))
    except OSError as error:
        raise ConfigurationError(
            f"the tokens in {path} cannot be written: {error.strerror}; name another file with SOLSTICE_TOKENS"
        ) from None


def _state(path: Path) -> tuple[int, ...] | None:
    """A value that differs whenever the file's content may; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, tokens: Sequence[Token]) -> None:
    document = _Document(tokens=[_entry(token) for token in tokens])
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "wb") as file:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            # The file keeps its owner and mode: root may make a token for a service that runs as another user, and two
            # services with users of their own may share the file through a group.
            before = path.stat()
            os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), OWNER_ONLY | (before.st_mode & _OTHERS_READ))
        file.write(document.model_dump_json(indent=2).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _token(entry: _Entry) -> Token:
    return Token(
        name=entry.name,
        scopes=frozenset(entry.scopes),
        created_at=parse_timestamp(entry.created_at).timestamp(),
        expires_at=None if entry.expires_at is None else parse_timestamp(entry.expires_at).timestamp(),
        sha256=entry.sha256,
    )


def _entry(token: Token) -> _Entry:
    return _Entry(
        name=token.name,
        scopes=sorted(token.scopes),
        created_at=format_seconds(token.created_at),
        expires_at=None if token.expires_at is None else format_seconds(token.expires_at),
        sha256=token.sha256,
    )
