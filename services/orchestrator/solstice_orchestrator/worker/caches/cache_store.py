"""Finds, adds and removes caches in a store of objects.

A cache is an archive, named by its digest, and a small entry that names it. An entry comes after its archive and goes before
it, and is never replaced; a kill between the two leaves an archive that no entry names.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from solstice_orchestrator.worker.caches.cache_entries import (
    ARCHIVES,
    ENTRIES,
    USES,
    CacheEntry,
    CachePlace,
    UsedEntry,
    archive_of,
    decode_entry,
    encode_entry,
    key_of,
    use_of,
)
from solstice_orchestrator.worker.caches.cache_limits import CacheLimits, no_room, superfluous
from solstice_orchestrator.worker.caches.cache_objects import CacheObjects, IncomingObject, StoredObject

ORPHAN_SECONDS: Final = 900.0
"""How long an archive stays that no entry names: its entry may be coming. The same for the use of an entry that is gone."""
FRESH_SECONDS: Final = ORPHAN_SECONDS / 3
"""An archive that is older is written again for a new entry, so that nothing removes it meanwhile."""
MAX_ENTRY_BYTES: Final = 64 * 1024
_REMEMBERED: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStore:
    """The caches of one store; its methods block, and raise OSError."""

    objects: CacheObjects
    limits: CacheLimits = field(default_factory=CacheLimits)
    clock: Callable[[], float] = time.time
    _known: dict[tuple[str, float], CacheEntry] = field(default_factory=dict, init=False)
    """Entries by name and time: they never change, and are read once."""

    def find(self, places: Sequence[CachePlace], key: str, fallbacks: Sequence[str]) -> CacheEntry | None:
        """Return the entry of the key, else the one that fits best.

        The exact key of an earlier place goes before that of a later one, and any of them before fallbacks. Of these, the
        longest that fits counts, then the earlier place, then the newest entry.
        """
        for place in places:
            if entry := self._read(place.name(key)):
                return entry
        for fallback in sorted(set(fallbacks), key=lambda each: (-len(each), each)):
            for place in places:
                fitting = [
                    each
                    for each in self.objects.list(f"{ENTRIES}/{place.folder}")
                    if (key_of(each.name) or "").startswith(fallback)
                ]
                for newest in sorted(fitting, key=lambda each: (each.modified, each.name), reverse=True):
                    if entry := self._read(newest.name):
                        return entry
        return None

    def open(self, entry: CacheEntry) -> AbstractContextManager[BinaryIO]:
        """Open the archive of an entry; FileNotFoundError when it is gone."""
        return self.objects.open(archive_of(entry.digest))

    def used(self, entry: CacheEntry) -> None:
        """Note that an entry was restored."""
        self.objects.touch(use_of(entry.name))

    def no_room(self, place: CachePlace, size: int) -> str | None:
        """Return why an archive of this size cannot be stored here."""
        entries = [] if place.scope.is_trusted else self.entries()
        return no_room(entries, self.limits, place.repository, size=size, is_trusted=place.scope.is_trusted)

    def add(self, entry: CacheEntry, archive: IncomingObject) -> tuple[bool, int]:
        """Store an archive and its entry.

        Returns whether the key was free, and how many other entries went.
        """
        name = archive_of(entry.digest)
        known = {each.name: each.modified for each in self.objects.list(name.rpartition("/")[0])}
        if known.get(name, 0.0) < self.clock() - FRESH_SECONDS:
            self.objects.put(archive, name)
        if not self.objects.put_new(entry.name, encode_entry(entry)):
            return False, 0
        return True, len(self.make_room(entry))

    def make_room(self, added: CacheEntry | None = None) -> Sequence[CacheEntry]:
        """Remove what is unused or too much, and return it."""
        if not (self.limits.all_bytes or self.limits.repository_bytes or self.limits.unused_seconds):
            return []
        keeps = added.name if added and added.place.scope.is_trusted else ""
        gone = superfluous(self.entries(), self.limits, self.clock(), keeps)
        self.remove(gone)
        return gone

    def entries(self) -> Sequence[UsedEntry]:
        """Return all entries, in no order."""
        uses = {each.name: each.modified for each in self.objects.list(USES)}
        found = []
        for stored in self.objects.list(ENTRIES):
            if entry := self._known_entry(stored):
                last = max(stored.modified, uses.get(use_of(stored.name), 0.0))
                found.append(UsedEntry(entry=entry, used_at=last))
        return found

    def try_out(self) -> Sequence[UsedEntry]:
        """Write, read, list and remove an object, and return all entries. Raises OSError."""
        name = f"trials/{secrets.token_hex(16)}"
        try:
            if not self.objects.put_new(name, name.encode()) or self.objects.put_new(name, b""):
                raise OSError("what is written is not there, or is written twice")
            with self.objects.open(name) as file:
                if file.read(len(name) + 1) != name.encode():
                    raise OSError("what is read is not what was written")
            if name not in {each.name for each in self.objects.list("trials")}:
                raise OSError("what is written is not listed")
        finally:
            self.objects.remove(name)
        return self.entries()

    def remove(self, entries: Collection[CacheEntry]) -> None:
        """Remove entries, and the archives that no other entry names."""
        if not entries:
            return
        for entry in entries:
            self.objects.remove(entry.name)
            self.objects.remove(use_of(entry.name))
        needed = {used.entry.digest for used in self.entries()}
        fresh = self.clock() - ORPHAN_SECONDS
        for digest in {entry.digest for entry in entries} - needed:
            name = archive_of(digest)
            for each in self.objects.list(name.rpartition("/")[0]):
                # The entry of a young archive may just be coming.
                if each.name == name and each.modified < fresh:
                    self.objects.remove(name)

    def sweep(self) -> Sequence[CacheEntry]:
        """Remove what is unused, too much, or left by killed processes.

        Returns the entries that went.
        """
        gone = self.make_room()
        now = self.clock()
        used = self.entries()
        digests, names = {each.entry.digest for each in used}, {use_of(each.entry.name) for each in used}
        for archive in self.objects.list(ARCHIVES):
            if archive.modified < now - ORPHAN_SECONDS and archive.name.rpartition("/")[2] not in digests:
                self.objects.remove(archive.name)
        for use in self.objects.list(USES):
            if use.modified < now - ORPHAN_SECONDS and use.name not in names:
                self.objects.remove(use.name)
        self.objects.sweep(now)
        return gone

    def _known_entry(self, stored: StoredObject) -> CacheEntry | None:
        which = stored.name, stored.modified
        if which not in self._known and (entry := self._read(stored.name)):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[which] = entry
        return self._known.get(which)

    def _read(self, name: str) -> CacheEntry | None:
        """Return the entry of this name.

        None: there is none, or it says that it belongs elsewhere.
        """
        content = b""
        with contextlib.suppress(FileNotFoundError), self.objects.open(name) as file:
            content = file.read(MAX_ENTRY_BYTES)
        entry = decode_entry(content) if content else None
        return entry if entry and entry.name == name else None
