"""Restore the caches of a job before its steps, and save them afterwards.

No failure here is the job's: it is a line in the log of the job, and in the metrics.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar

import structlog

from solstice_common.errors import SolsticeError
from solstice_common.messages import JobRequestV1, Source
from solstice_common.values.repo_urls import name_of
from solstice_orchestrator.domain.jobs import CacheSpec
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.domain.trust import V1_TRUST, CacheScope, cache_scopes
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.caches.cache_entries import CacheEntry, CachePlace
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.checksums import checksum
from solstice_orchestrator.worker.caches.packing import CacheRefused, CacheRoots, pack
from solstice_orchestrator.worker.caches.unpacking import unpack
from solstice_orchestrator.worker.workspaces import Workspace
from solstice_orchestrator.workflow.job_files.cache_key import checksums_of, filled

LOG = structlog.get_logger(__name__)

THREADS: Final = 4
"""Caches that are restored or saved at once; others wait. They would take each other's disk and processors."""
SECONDS: Final = 600.0
"""How long restoring or saving one may take."""
ASIDE: Final = "caches"
_KIB: Final = 1024

T = TypeVar("T")
Result = Literal["hit", "fallback", "miss", "saved", "present", "refused", "error"]


class CacheLog(Protocol):
    """The log of a job."""

    async def mark(self, line: LogMark) -> None: ...

    async def write(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CachingJob:
    """A job with caches, and the files of its attempt."""

    job_id: str
    specs: tuple[CacheSpec, ...]
    request: JobRequestV1
    workspace: Workspace
    system: str | None
    """On what kind of system it runs; None: it has no caches there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtCache:
    """A cache of a job, with the keys that its checkout gives."""

    spec: CacheSpec
    places: tuple[CachePlace, ...]
    """Where it may be read; it is saved in the first."""
    key: str
    fallbacks: tuple[str, ...]
    is_there: bool = False
    """Whether its very key was restored, so that nothing is to be saved."""


@dataclass(slots=True)
class _Ended:
    """What restoring or saving one cache came to."""

    result: Result
    line: str
    content_bytes: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCaches:
    """The caches of the jobs of one orchestrator."""

    store: CacheStore
    v1_trust: frozenset[Source] = V1_TRUST
    metrics: Metrics | None = None
    seconds: float = SECONDS
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="caches"), init=False
    )

    async def restore(self, job: CachingJob, log: CacheLog, stop: asyncio.Event) -> Sequence[SoughtCache]:
        """Restore what there is, and return what is to be saved if the job succeeds."""
        if not job.specs:
            return []
        await log.mark(LogMark.of("$ restore caches"))
        if job.system is None:
            await log.write(b"jobs in virtual machines have no caches: this one runs without them\n")
            return []
        # All keys come from the files of the checkout, which a cache may replace.
        sought = []
        for spec in job.specs:
            which = await self._done("restore", spec, log, stop, partial(self._sought, job, spec, job.system))
            if isinstance(which, SoughtCache):
                sought.append(which)
        found = []
        for number, each in enumerate(sought):
            aside = job.workspace.root / f"{ASIDE}-{number}"
            ended = await self._done(
                "restore", each.spec, log, stop, partial(self._restore, each, job.workspace, aside)
            )
            found.append(replace(each, is_there=ended.result == "hit"))
        return found

    async def save(
        self, job: CachingJob, sought: Sequence[SoughtCache], log: CacheLog, stop: asyncio.Event
    ) -> None:
        """Save what was not restored by its very key."""
        missing = [each for each in sought if not each.is_there]
        if missing and not stop.is_set():
            await log.mark(LogMark.of("$ save caches"))
            for each in missing:
                await self._done("save", each.spec, log, stop, partial(self._save, each, job))

    async def _done(
        self,
        operation: str,
        spec: CacheSpec,
        log: CacheLog,
        stop: asyncio.Event,
        work: Callable[[Callable[[], bool]], T],
    ) -> T | _Ended:
        """Do one piece of work in a thread, and log what came of it.

        No failure leaves this.
        """
        ended, begun = asyncio.Event(), time.monotonic()

        def is_ended() -> bool:
            return stop.is_set() or ended.is_set() or time.monotonic() > begun + self.seconds

        done: T | _Ended
        try:
            working = asyncio.get_running_loop().run_in_executor(self._threads, work, is_ended)
            try:
                done = await asyncio.shield(working)
            except asyncio.CancelledError:
                ended.set()
                await run_to_completion(_settled(working), f"{operation} cache {spec.name}")
                raise
        except CacheRefused as error:
            done = _Ended("refused", f"not {operation}d: {error}")
        except Exception as error:  # noqa: BLE001  a cache is never a reason for a job to fail
            done = _Ended("error", f"not {operation}d: {_cause(error)}")
            LOG.warning(LogEvent.CACHE_FAILED, cache=spec.name, operation=operation, detail=_cause(error))
        if isinstance(done, _Ended):
            seconds = time.monotonic() - begun
            await log.write(f"{spec.name}: {done.line} ({seconds:.1f} s)\n".encode())
            if self.metrics is not None:
                self.metrics.cache_used(operation, done.result, done.content_bytes, seconds)
                self.metrics.caches_evicted.inc(done.evicted)
        return done

    def _sought(
        self, job: CachingJob, spec: CacheSpec, system: str, _is_ended: Callable[[], bool]
    ) -> SoughtCache:
        repository = name_of(job.request.repo_url)
        checksums = {
            patterns: checksum(WorkspaceFiles(job.workspace.source), patterns)
            for key in (spec.key, *spec.fallbacks)
            for patterns in checksums_of(key)
        }

        def place(scope: CacheScope) -> CachePlace:
            return CachePlace(
                repository=repository, scope=scope, system=system, cache=spec.name, paths=spec.paths
            )

        return SoughtCache(
            spec=spec,
            places=tuple(map(place, cache_scopes(job.request, self.v1_trust))),
            key=filled(spec.key, checksums),
            fallbacks=tuple(filled(each, checksums) for each in spec.fallbacks),
        )

    def _restore(
        self, sought: SoughtCache, workspace: Workspace, aside: Path, is_ended: Callable[[], bool]
    ) -> _Ended:
        while (entry := self.store.find(sought.places, sought.key, sought.fallbacks)) is not None:
            try:
                archive = self.store.open(entry)
            except FileNotFoundError:
                # Its archive was removed at the moment when it was saved.
                self.store.remove([entry])
                continue
            with archive as file:
                unpack(
                    file,
                    entry.digest,
                    _roots(workspace),
                    sought.spec.paths,
                    aside,
                    most_bytes=self.store.limits.most_bytes,
                    is_ended=is_ended,
                )
            self.store.used(entry)
            is_hit = entry.key == sought.key
            how = "" if is_hit else f", in place of {sought.key}"
            return _Ended(
                "hit" if is_hit else "fallback",
                f"restored {entry.key}{how}: {_size(entry.content_bytes)} of the {_of(entry, sought)}",
                entry.content_bytes,
            )
        return _Ended("miss", f"there is no {sought.key}")

    def _save(self, sought: SoughtCache, job: CachingJob, is_ended: Callable[[], bool]) -> _Ended:
        place, limits = sought.places[0], self.store.limits
        with self.store.objects.incoming() as archive:
            room = self.store.objects.room()
            if room is not None and room < limits.reserve_bytes:
                raise CacheRefused("the disk of the caches has less room left than DISK_RESERVE_MIB says")
            packed = pack(
                _roots(job.workspace),
                sought.spec.paths,
                archive.file,
                most_bytes=limits.most_bytes,
                is_ended=is_ended,
            )
            if why := self.store.no_room(place, packed.size):
                raise CacheRefused(why)
            entry = CacheEntry(
                place=place,
                key=sought.key,
                digest=packed.digest,
                size=packed.size,
                content_bytes=packed.content_bytes,
                files=packed.files,
                created_at=self.store.clock(),
                job_id=job.job_id,
            )
            is_new, evicted = self.store.add(entry, archive)
        if not is_new:
            return _Ended("present", f"{sought.key} is there already")
        size = f"{_size(packed.content_bytes)} in {packed.files} files, {_size(packed.size)} compressed"
        return _Ended("saved", f"saved {sought.key}: {size}", packed.content_bytes, evicted)


async def _settled(working: "asyncio.Future[T]") -> None:
    await asyncio.wait([working])
    working.exception()


def _roots(workspace: Workspace) -> CacheRoots:
    return CacheRoots(workspace=workspace.source, home=workspace.home)


def _of(entry: CacheEntry, sought: SoughtCache) -> str:
    shown = entry.place.scope.shown
    return f"same {shown.split()[0]}" if entry.place == sought.places[0] and entry.place.scope.name else shown


def _cause(error: Exception) -> str:
    if isinstance(error, OSError | SolsticeError | ValueError):
        return str(error)[:500]
    return f"{type(error).__name__}: {error}"[:500]


def _size(size: int) -> str:
    if size < _KIB**2:
        return f"{size / _KIB:.1f} KiB"
    return f"{size / _KIB**2:.1f} MiB"
