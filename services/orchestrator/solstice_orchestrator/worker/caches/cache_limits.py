"""Which caches are removed so that others have room. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.worker.caches.cache_entries import CacheEntry, UsedEntry

MIB: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """What the operator gives to caches; 0: without a limit."""

    most_bytes: int = 2048 * MIB
    """Of the files of one."""
    repository_bytes: int = 0
    """Of the archives of one repository."""
    all_bytes: int = 0
    """Of all archives."""
    unused_seconds: float = 0.0
    """How long one stays that no job restores."""
    reserve_bytes: int = 0
    """Room of the disk that they leave to others."""


def no_room(
    entries: Iterable[UsedEntry], limits: CacheLimits, repository: str, *, size: int, is_trusted: bool
) -> str | None:
    """Return why an archive of this size cannot be stored.

    None: there is room, if others go.

    What untrusted runs save takes no room from what trusted ones saved.
    """
    own = every = 0
    if not is_trusted:
        for used in entries:
            if used.entry.place.scope.is_trusted:
                every += used.entry.size
                own += used.entry.size if used.entry.place.repository == repository else 0
    if limits.repository_bytes and own + size > limits.repository_bytes:
        return (
            f"caches of one repository may have {limits.repository_bytes // MIB} MiB (CACHE_REPOSITORY_MIB)"
        )
    if limits.all_bytes and every + size > limits.all_bytes:
        return f"all caches together may have {limits.all_bytes // MIB} MiB (CACHE_DISK_MIB)"
    return None


def superfluous(
    entries: Iterable[UsedEntry], limits: CacheLimits, now: float, added: str = ""
) -> Sequence[CacheEntry]:
    """Return the entries that must go.

    Unused ones, and the least recently used of what is too much.

    Those of untrusted runs go first. `added` is the name of an entry of a trusted run that has just come, and stays.
    """
    gone: dict[str, CacheEntry] = {}
    ordered = sorted(entries, key=lambda used: (used.entry.place.scope.is_trusted, used.used_at))
    for used in ordered:
        if limits.unused_seconds and used.used_at < now - limits.unused_seconds:
            gone[used.entry.name] = used.entry
    of_repositories = dict[str, int]()
    for used in ordered:
        if used.entry.name not in gone:
            repository = used.entry.place.repository
            of_repositories[repository] = of_repositories.get(repository, 0) + used.entry.size
    every = sum(of_repositories.values())

    def remove(entry: CacheEntry) -> None:
        nonlocal every
        gone[entry.name] = entry
        of_repositories[entry.place.repository] -= entry.size
        every -= entry.size

    candidates = [used.entry for used in ordered if used.entry.name != added]
    for entry in candidates:
        if (
            entry.name not in gone
            and limits.repository_bytes
            and of_repositories[entry.place.repository] > limits.repository_bytes
        ):
            remove(entry)
    for entry in candidates:
        if entry.name not in gone and limits.all_bytes and every > limits.all_bytes:
            remove(entry)
    return list(gone.values())
