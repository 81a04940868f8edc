"""Open the store of caches as the settings say: a directory, or a bucket."""

from typing import Final

from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.worker.caches.cache_limits import MIB, CacheLimits
from solstice_orchestrator.worker.caches.cache_objects import CacheObjects
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.object_bucket import BucketSettings, open_bucket
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory

DAY: Final = 86_400.0


def caches_of(settings: OrchestratorSettings) -> CacheStore:
    """Return where caches are. Nothing is made or asked before the first cache.

    Raises ConfigurationError for a bucket that cannot be used.
    """
    return CacheStore(
        objects=_objects(settings),
        limits=CacheLimits(
            most_bytes=settings.cache_max_mib * MIB,
            repository_bytes=settings.cache_repository_mib * MIB,
            all_bytes=settings.cache_disk_mib * MIB,
            unused_seconds=settings.cache_days * DAY,
            reserve_bytes=settings.disk_reserve_mib * MIB,
        ),
    )


def _objects(settings: OrchestratorSettings) -> CacheObjects:
    directory = ObjectDirectory(settings.cache_directory.expanduser())
    if not settings.cache_bucket:
        return directory
    bucket = BucketSettings(
        url=settings.cache_bucket,
        endpoint=settings.cache_endpoint,
        region=settings.cache_region,
        credentials=settings.cache_credentials,
    )
    return open_bucket(bucket, directory)
