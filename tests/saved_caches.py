"""Saves caches without a job."""

import hashlib

from solstice_orchestrator.domain.trust import DEFAULT_BRANCH, CacheScope
from solstice_orchestrator.worker.caches.cache_entries import CacheEntry, CachePlace
from solstice_orchestrator.worker.caches.cache_store import CacheStore


def cache_place(
    scope: CacheScope = DEFAULT_BRANCH,
    *,
    cache: str = "pip",
    repository: str = "forge.example/river/otter",
    paths: tuple[str, ...] = ("x",),
) -> CachePlace:
    """A place for keys."""
    return CachePlace(repository=repository, scope=scope, system="linux", cache=cache, paths=paths)


def save_cache(store: CacheStore, where: CachePlace, key: str, content: bytes = b"content") -> CacheEntry:
    """The entry of a cache with this archive, which may not be one."""
    entry = CacheEntry(
        place=where,
        key=key,
        digest=hashlib.sha256(content).hexdigest(),
        size=len(content),
        content_bytes=len(content),
        files=1,
        created_at=store.clock(),
        job_id="job",
    )
    with store.objects.incoming() as archive:
        archive.file.write(content)
        store.add(entry, archive)
    return entry
