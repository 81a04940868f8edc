"""Hand files from job to job: those it needs, and those of its own."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.store.artifact_records import NeededJobs, RecordArtifact
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.artifacts.needed import NeededArtifacts
from solstice_orchestrator.worker.artifacts.sources import ArtifactSource

_NO_DIRECTORY: Final = "no directory of artifacts is set up here"


class HandingAttempt(Protocol):
    """The part of an attempt that matters here."""

    @property
    def spec(self) -> JobSpec: ...

    @property
    def needed_jobs(self) -> NeededJobs: ...

    @property
    def record_artifact(self) -> RecordArtifact: ...


class HandingLog(Protocol):
    """The log of the attempt."""

    async def write(self, data: bytes) -> None: ...

    async def mark(self, line: LogMark) -> None: ...

    async def remark(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Handing:
    """What one attempt gets from other jobs, and hands out itself."""

    keeping: ArtifactKeeping | None
    """None: there is no directory of artifacts here."""
    attempt: HandingAttempt
    log: HandingLog
    stop: asyncio.Event

    async def hand_in(self, workspace: Path) -> Outcome | None:
        """Place the artifacts that the job needs; return its outcome if that fails.

        Raises OSError when the workspace has no room, and RuntimeError when no thread could be started.
        """
        needed = self.attempt.spec.needed_artifacts
        if not needed:
            return None
        if self.keeping is None:
            return _unavailable(_NO_DIRECTORY)
        await self.log.mark(LogMark.of("$ artifacts"))
        try:
            jobs = await self.attempt.needed_jobs({each.job for each in needed})
        except StoreUnavailable as error:
            return _unavailable(f"the artifacts of needed jobs could not be looked up: {error}")
        artifacts = NeededArtifacts(self.keeping.directory)
        for each in needed:
            view = await artifacts.place(each, jobs, workspace, self.stop)
            if isinstance(view, Outcome):
                return view
            words = f"files: {view.files}, bytes: {view.size}, sha256:{view.digest}"
            await self.log.write(f"{each.name} of {each.job}: {words}\n".encode())
        return None

    async def hand_out(self, source: ArtifactSource, succeeded: Outcome) -> Outcome:
        """Keep the artifacts of a job whose processes have ended, and return its outcome."""
        for spec in self.attempt.spec.artifacts:
            if self.keeping is None:
                return replace(
                    succeeded,
                    state=JobState.ERRORED,
                    reason=Reason.ARTIFACT_NOT_STORED,
                    detail=_NO_DIRECTORY,
                )
            record = await self.keeping.keep(source, spec, self.attempt.record_artifact, self.stop)
            if isinstance(record, Outcome):
                return replace(succeeded, state=record.state, reason=record.reason, detail=record.detail)
            await self.log.remark(
                f"artifact {spec.name}: files: {record.files}, bytes: {record.size}, sha256:{record.digest}"
            )
        return succeeded


def _unavailable(detail: str) -> Outcome:
    return Outcome(state=JobState.ERRORED, reason=Reason.ARTIFACT_UNAVAILABLE, detail=detail)
