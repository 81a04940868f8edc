"""Objects of caches in a bucket of S3, or of what speaks its protocol.

The only module that imports obstore (the extra `s3`), and only where CACHE_BUCKET names a bucket.
"""

import importlib
import io
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.worker.caches.cache_objects import IncomingObject, StoredObject
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory

PIECE_BYTES: Final = 1024 * 1024
PART_BYTES: Final = 16 * 1024 * 1024
"""Of an upload in parts."""
CONNECT_SECONDS: Final = 5
SMALL_SECONDS: Final = 30
"""How long a list, or a small object, may take."""
LARGE_SECONDS: Final = 300
"""The same for an archive, from its first to its last byte."""
RETRIES: Final = 2
RETRY_SECONDS: Final = 60
"""After so many no request is tried again: an orchestrator that ends waits for those that are under way."""
_SECRETS: Final = {"key_id": "access_key_id", "secret": "secret_access_key", "token": "session_token"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """Where a bucket is, and who we are there."""

    url: str
    """s3://BUCKET, or s3://BUCKET/FOLDER."""
    endpoint: str = ""
    """Empty: that of AWS for the region."""
    region: str = "us-east-1"
    credentials: str = ""
    """A TOML file with `key_id`, `secret` and perhaps `token`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectBucket:
    """One bucket (`CacheObjects`); an object comes by one request, so it is whole."""

    obstore: ModuleType
    small: Any
    large: Any
    """The same bucket, with time for archives."""
    local: ObjectDirectory
    """Where archives are written before they are sent."""
    place: str

    def room(self) -> int | None:
        return self.local.room()

    def incoming(self) -> AbstractContextManager[IncomingObject]:
        return self.local.incoming()

    def put(self, incoming: IncomingObject, name: str) -> None:
        incoming.file.flush()
        with self._errors(name):
            self.obstore.put(self.large, name, incoming.path, chunk_size=PART_BYTES)

    def put_new(self, name: str, content: bytes) -> bool:
        with self._errors(name):
            try:
                self.obstore.put(self.small, name, content, mode="create", use_multipart=False)
            except self.obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def touch(self, name: str) -> None:
        with self._errors(name):
            self.obstore.put(self.small, name, b"", use_multipart=False)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with self._errors(name):
            pieces = self.obstore.get(self.large, name).stream(min_chunk_size=PIECE_BYTES)
            with io.BufferedReader(cast("io.RawIOBase", _Pieces(pieces)), PIECE_BYTES) as file:
                yield cast("BinaryIO", file)

    def list(self, folder: str) -> Iterator[StoredObject]:
        with self._errors(folder):
            for batch in self.obstore.list(self.small, folder):
                for each in batch:
                    yield StoredObject(each["path"], each["size"], each["last_modified"].timestamp())

    def remove(self, name: str) -> None:
        try:
            with self._errors(name):
                self.obstore.delete(self.small, name)
        except FileNotFoundError:
            pass

    def sweep(self, now: float) -> None:
        self.local.sweep(now)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Make an error of the library an OSError of one line."""
        try:
            yield
        except (FileNotFoundError, self.obstore.exceptions.NotFoundError):
            raise FileNotFoundError(f"{self.place}: there is no {name}") from None
        except self.obstore.exceptions.BaseError as error:
            first, *_ = str(error).strip().splitlines() or [type(error).__name__]
            raise OSError(f"{self.place}: {first[:400]}") from None


class _Pieces(io.RawIOBase):
    """A stream of pieces as a file."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        super().__init__()
        self._pieces, self._rest = iter(pieces), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def open_bucket(settings: BucketSettings, local: ObjectDirectory) -> ObjectBucket:
    """Return the bucket, which is not asked yet. Raises ConfigurationError."""
    bucket, folder = _parts(settings.url)
    secrets = _credentials(settings.credentials)
    try:
        obstore = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError:
        raise ConfigurationError("CACHE_BUCKET needs the extra s3: pip install 'solstice-ci[s3]'") from None

    def store(seconds: int) -> Any:
        return stores.S3Store(
            bucket,
            prefix=folder or None,
            **({"endpoint": settings.endpoint} if settings.endpoint else {}),
            region=settings.region,
            virtual_hosted_style_request=False,
            client_options={
                "allow_http": settings.endpoint.startswith("http://"),
                "connect_timeout": f"{CONNECT_SECONDS}s",
                "timeout": f"{seconds}s",
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            **secrets,
        )

    try:
        small, large = store(SMALL_SECONDS), store(LARGE_SECONDS)
    except Exception as error:  # noqa: BLE001  the library's own errors for settings have no common class but this
        raise ConfigurationError(f"CACHE_BUCKET {settings.url}: {error}".splitlines()[0]) from None
    where = f"{settings.url} at {settings.endpoint}" if settings.endpoint else settings.url
    return ObjectBucket(obstore=obstore, small=small, large=large, local=local, place=where)


def _parts(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigurationError(f"CACHE_BUCKET {url}: write it as s3://BUCKET or s3://BUCKET/FOLDER")
    return parts.netloc, parts.path.strip("/")


def _credentials(file: str) -> Mapping[str, str]:
    """Return the credentials as the library calls them."""
    example = 'key_id = "..." and secret = "..."'
    if not file:
        raise ConfigurationError(f"CACHE_BUCKET needs CACHE_CREDENTIALS, a TOML file with {example}")
    try:
        found = tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"CACHE_CREDENTIALS {file}: {error.strerror or error}") from None
    except ValueError as error:
        # Its own words would show the line, and with it a secret.
        line = getattr(error, "lineno", None)
        raise ConfigurationError(
            f"CACHE_CREDENTIALS {file}: no TOML" + (f" (line {line})" if line else "")
        ) from None
    if not {"key_id", "secret"} <= found.keys() <= _SECRETS.keys() or not all(
        isinstance(each, str) and each for each in found.values()
    ):
        raise ConfigurationError(f"CACHE_CREDENTIALS {file}: it has {example}, and perhaps token, all text")
    return {_SECRETS[name]: value for name, value in found.items()}
