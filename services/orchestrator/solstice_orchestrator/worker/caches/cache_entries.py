"""The entries of a store of caches, and the names of its objects. Pure."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

from solstice_orchestrator.domain.trust import CacheScope

VERSION: Final = 1
"""Of the content of an entry; another one is left alone."""
ENTRIES: Final = "entries"
USES: Final = "uses"
ARCHIVES: Final = "archives"
ID_DIGITS: Final = 12
_DIGITS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlace:
    """Where the keys of one cache are.

    Keys of other owners or systems are elsewhere.
    """

    repository: str
    scope: CacheScope
    system: str
    """The label, the executor and the kind of machine or image."""
    cache: str
    """The name in the workflow file."""
    paths: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder of its entries below `entries`.

        It is made of digests, so no text of a job is a part of a path.
        """
        scope = (self.scope.is_trusted, self.scope.name)
        what = (self.system, self.cache, *self.paths)
        return "/".join(_digest(part) for part in ((self.repository,), scope, what))

    def name(self, key: str) -> str:
        """Return the name of a key's entry."""
        return f"{ENTRIES}/{self.folder}/{_encoded(key)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One saved cache."""

    place: CachePlace
    key: str
    digest: str
    """SHA-256 of the archive."""
    size: int
    """Bytes of the archive, which is compressed."""
    content_bytes: int
    files: int
    created_at: float
    job_id: str

    @property
    def name(self) -> str:
        return self.place.name(self.key)

    @property
    def identifier(self) -> str:
        """What people call it by: the same for the same place and key."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:ID_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedEntry:
    """An entry, and when it was last saved or restored."""

    entry: CacheEntry
    used_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheView:
    """A cache, as people and programs see it."""

    cache_id: str
    repository: str
    name: str
    """In its workflow file."""
    key: str
    scope: str
    trusted: bool
    """Whether trusted runs saved it."""
    system: str
    paths: tuple[str, ...]
    size: int
    """Bytes of its archive."""
    content_bytes: int
    """Bytes of its files."""
    files: int
    digest: str
    job_id: str
    """The job that saved it."""
    created_at: float
    used_at: float

    @classmethod
    def of(cls, used: UsedEntry) -> Self:
        entry, place = used.entry, used.entry.place
        return cls(
            cache_id=entry.identifier,
            repository=place.repository,
            name=place.cache,
            key=entry.key,
            scope=place.scope.shown,
            trusted=place.scope.is_trusted,
            system=place.system,
            paths=place.paths,
            size=entry.size,
            content_bytes=entry.content_bytes,
            files=entry.files,
            digest=entry.digest,
            job_id=entry.job_id,
            created_at=entry.created_at,
            used_at=used.used_at,
        )


def use_of(entry_name: str) -> str:
    """Return the name of the object whose time is the last use of an entry."""
    return f"{USES}/{entry_name.partition('/')[2]}"


def archive_of(digest: str) -> str:
    """Return the name of an archive."""
    return f"{ARCHIVES}/{digest[:2]}/{digest}"


def key_of(name: str) -> str | None:
    """Return the key in the name of an entry; None: it has none."""
    written = name.rpartition("/")[2]
    try:
        key = base64.b32hexdecode(written.upper() + "=" * (-len(written) % 8)).decode()
    except ValueError:
        return None
    return key if _encoded(key) == written else None


def encode_entry(entry: CacheEntry) -> bytes:
    """Return an entry as it is stored."""
    return orjson.dumps({"version": VERSION, **asdict(entry)})


def decode_entry(content: bytes) -> CacheEntry | None:
    """Return the entry that `encode_entry` wrote; None for any other content."""
    try:
        fields = orjson.loads(content)
        if fields.pop("version") != VERSION:
            return None
        place = fields.pop("place")
        entry = CacheEntry(
            place=CachePlace(
                repository=_text(place["repository"]),
                scope=CacheScope(
                    is_trusted=place["scope"]["is_trusted"] is True, name=_text(place["scope"]["name"])
                ),
                system=_text(place["system"]),
                cache=_text(place["cache"]),
                paths=tuple(map(_text, place["paths"])),
            ),
            key=_text(fields["key"]),
            digest=_text(fields["digest"]),
            size=int(fields["size"]),
            content_bytes=int(fields["content_bytes"]),
            files=int(fields["files"]),
            created_at=float(fields["created_at"]),
            job_id=_text(fields["job_id"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    is_digest = len(entry.digest) == hashlib.sha256().digest_size * 2 and set(entry.digest) <= set(
        "0123456789abcdef"
    )
    return entry if is_digest and min(entry.size, entry.content_bytes, entry.files) >= 0 else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _digest(part: Sequence[object]) -> str:
    return hashlib.sha256(orjson.dumps(part)).hexdigest()[:_DIGITS]


def _encoded(key: str) -> str:
    """Return a key in letters that every file system tells apart."""
    return base64.b32hexencode(key.encode()).decode().rstrip("=").lower()
