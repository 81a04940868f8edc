"""Keep the artifacts of an attempt whose steps have succeeded."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import ArtifactSpec, Outcome, Reason
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord, RecordArtifact
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives, IncomingArchive
from solstice_orchestrator.worker.artifacts.collecting import CollectedFiles, collect
from solstice_orchestrator.worker.artifacts.sources import ArtifactSource, NotCollected

SLACK_SECONDS: Final = 3600.0
"""How much longer an archive stays than its record: for the clocks of other machines, and who still reads it."""
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """What the operator gives to artifacts."""

    most_bytes: int = 1024 * _MIB
    """Of one."""
    all_bytes: int = 0
    """Of all together; 0: without a limit."""
    reserve_bytes: int = 0
    """Room of the disk that they leave to others."""
    retention_seconds: float = 30 * 86_400.0
    """Of artifacts that do not say it."""
    longest_seconds: float | None = None
    """The most that they may say: their runs are removed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactKeeping:
    """Collects artifacts into the directory, and has the store record them."""

    directory: ArtifactArchives
    limits: ArtifactLimits = ArtifactLimits()
    clock: Callable[[], float] = time.time

    async def keep(
        self, source: ArtifactSource, spec: ArtifactSpec, record: RecordArtifact, stop: asyncio.Event
    ) -> ArtifactRecord | Outcome:
        """Return the record of one artifact, or the outcome of its job.

        A cancelled caller waits for the thread that reads the files, which ends soon.
        """
        ended = asyncio.Event()

        def is_ended() -> bool:
            return stop.is_set() or ended.is_set()

        try:
            return await self._collected(source, spec, record, is_ended)
        except asyncio.CancelledError:
            ended.set()
            raise
        except (OSError, RuntimeError) as error:
            return _not_stored(spec, f"ARTIFACT_DIRECTORY cannot be used: {error}")

    async def _collected(
        self, source: ArtifactSource, spec: ArtifactSpec, record: RecordArtifact, is_ended: Callable[[], bool]
    ) -> ArtifactRecord | Outcome:
        seconds = self._retention_seconds(spec)
        self.directory.prepare()
        incoming: AbstractContextManager[IncomingArchive] = self.directory.incoming()
        with incoming as archive:
            collected = await run_to_completion(
                asyncio.to_thread(self._collect, source, spec, archive, is_ended), f"artifact {spec.name}"
            )
            if isinstance(collected, NotCollected):
                return _outcome(spec, collected)
            until = self.clock() + seconds + SLACK_SECONDS
            await run_to_completion(
                asyncio.to_thread(self.directory.place, archive, collected.digest, until),
                f"archive of {spec.name}",
            )
        artifact = ArtifactRecord(
            name=spec.name,
            digest=collected.digest,
            size=collected.size,
            files=collected.files,
            retention_seconds=seconds,
        )
        try:
            answer = await record(artifact, self.limits.all_bytes)
        except StoreUnavailable as error:
            return _not_stored(spec, f"it could not be recorded: {error}")
        if answer is ArtifactAnswer.FULL:
            return _not_stored(
                spec, f"all artifacts together have {self.limits.all_bytes // _MIB} MiB (ARTIFACT_DISK_MIB)"
            )
        # The outcome of a fenced attempt is not stored, so it does not matter here.
        return artifact

    def _collect(
        self,
        source: ArtifactSource,
        spec: ArtifactSpec,
        archive: IncomingArchive,
        is_ended: Callable[[], bool],
    ) -> CollectedFiles | NotCollected:
        return collect(
            source,
            spec,
            archive.file,
            most_bytes=self.limits.most_bytes,
            room_bytes=self.directory.free_bytes() - self.limits.reserve_bytes,
            is_ended=is_ended,
        )

    def _retention_seconds(self, spec: ArtifactSpec) -> float:
        seconds = spec.retention_seconds or self.limits.retention_seconds
        return seconds if self.limits.longest_seconds is None else min(seconds, self.limits.longest_seconds)


def _outcome(spec: ArtifactSpec, why: NotCollected) -> Outcome:
    match why.reason:
        case Reason.CANCEL_REQUESTED:
            return Outcome(state=JobState.CANCELLED, reason=why.reason)
        case Reason.ARTIFACT_NOT_STORED:
            return _not_stored(spec, why.detail)
        case _:
            return Outcome(
                state=JobState.FAILED, reason=why.reason, detail=f"artifact {spec.name}: {why.detail}"
            )


def _not_stored(spec: ArtifactSpec, detail: str) -> Outcome:
    return Outcome(
        state=JobState.ERRORED,
        reason=Reason.ARTIFACT_NOT_STORED,
        detail=f"artifact {spec.name}: {detail}"[:1000],
    )
