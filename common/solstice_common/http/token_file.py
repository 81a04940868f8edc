"""Keeps tokens in a file, and reads it again whenever it changes.

The file is written whole or not at all, for its owner alone.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from solstice_common.errors import ConfigurationError
from solstice_common.http.tokens import NAME, Token, TokenScope
from solstice_common.messages.fields import Timestamp
from solstice_common.runtime.replaced_file import OTHERS_WRITE, file_state, replace_file
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.values.times import format_seconds, parse_timestamp
from solstice_common.values.validation import in_words

log = structlog.get_logger(__name__)

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
    """The current tokens of a file.

    A file that cannot be read, or that other users may write to, changes nothing: the tokens that were read
    last stay valid, and one log line per such state of the file says so. A missing file has no tokens. Raises
    ConfigurationError when it cannot be read the first time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_state = file_state(path)
        self._tokens = read(path)
        self._had_tokens = bool(self._tokens) or self._file_state is not None

    @property
    def ever_had_tokens(self) -> bool:
        """Whether the file ever held a token, as far as this process knows.

        That is so when the file exists, or existed while this process ran.

        Only 'solstice token' makes the file, and never without a token: an empty file has lost its last one.
        To allow callers on this machine without tokens again, delete the file and restart the services.
        """
        return self._had_tokens

    def current(self) -> Tokens:
        """Return the current tokens.

        Looks at the file's inode and times, and reads it only when they have changed.
        """
        state = file_state(self.path)
        if state != self._file_state:
            self._file_state = state
            self._had_tokens = self._had_tokens or state is not None
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
    """Return the tokens in the file, none when there is no file.

    ConfigurationError says what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            mode, body = os.fstat(file.fileno()).st_mode, file.read()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigurationError(f"the tokens in {path} cannot be read: {error.strerror}") from None
    if mode & OTHERS_WRITE:
        raise ConfigurationError(
            f"the tokens in {path} are not used, since others may write to the file: chmod 600 {path}"
        )
    try:
        entries = _Document.model_validate_json(body).tokens
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigurationError(
            f"the tokens in {path} cannot be used ({where or 'file'}: {in_words(problem)}): fix the file, or remove it and "
            "make new ones with 'solstice token create'"
        ) from None
    return tuple(_token(entry) for entry in entries)


def change(path: Path, decide: Callable[[Tokens], Sequence[Token]]) -> None:
    """Write the tokens that `decide` returns for the present ones, under a lock.

    Durable on return, and a reader sees the old file or the new one. ConfigurationError when it cannot be written.
    """

    def content() -> bytes:
        document = _Document(tokens=[_entry(token) for token in decide(read(path))])
        return document.model_dump_json(indent=2).encode() + b"\n"

    try:
        replace_file(path, content)
    except OSError as error:
        raise ConfigurationError(
            f"the tokens in {path} cannot be written: {error.strerror}; name another file with SOLSTICE_TOKENS"
        ) from None


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
