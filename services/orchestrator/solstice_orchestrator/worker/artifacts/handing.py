"""Hand files from job to job: those it needs, and those of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.handing_spec import HandedArtifact, NeededOutput
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.store.artifact_records import NeededJob, NeededJobs, RecordArtifact
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.artifacts.needed import NeededArtifacts
from solstice_orchestrator.worker.artifacts.outputs import MAX_GIVEN_BYTES, read_outputs
from solstice_orchestrator.worker.artifacts.sources import ArtifactSource, NotCollected, shown

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

    async def hand_in(self, workspace: Path) -> Mapping[str, str] | Outcome:
        """Place the artifacts that the job needs, and return the variables that it gets.

        An outcome says how the job ends without them. Raises OSError when the workspace has no room, and RuntimeError when
        no thread could be started.
        """
        spec = self.attempt.spec
        names = {each.job for each in spec.needed_artifacts} | {each.job for each in spec.needed_outputs}
        if not names:
            return {}
        try:
            jobs = await self.attempt.needed_jobs(names)
        except StoreUnavailable as error:
            return _unavailable(f"what needed jobs hand out could not be looked up: {error}")
        return await self._placed(jobs, workspace) or variables_of_needs(spec.needed_outputs, jobs)

    async def _placed(self, jobs: Mapping[str, NeededJob], workspace: Path) -> Outcome | None:
        """Place the artifacts; return the job's outcome if that fails."""
        needed = self.attempt.spec.needed_artifacts
        if not needed:
            return None
        if self.keeping is None:
            return _unavailable(_NO_DIRECTORY)
        await self.log.mark(LogMark.of("$ artifacts"))
        artifacts = NeededArtifacts(self.keeping.directory)
        for each in needed:
            view = await artifacts.place(each, jobs, workspace, self.stop)
            if isinstance(view, Outcome):
                return view
            words = f"files: {view.files}, bytes: {view.size}, sha256:{view.digest}"
            await self.log.write(f"{each.name} of {each.job}: {words}\n".encode())
        return None

    async def hand_out(self, source: ArtifactSource, written: ArtifactSource, succeeded: Outcome) -> Outcome:
        """Keep the outputs and artifacts of a job whose processes have ended.

        Return its outcome. `written` is the folder with the file of outputs.
        """
        if specs := self.attempt.spec.outputs:
            read = await run_to_completion(
                asyncio.to_thread(read_outputs, specs, source, written),
                f"outputs of {self.attempt.spec.name}",
            )
            if isinstance(read, NotCollected):
                return _without_outputs(succeeded, read)
            for name in read.undeclared:
                await self.log.remark(
                    f"output {shown(name.encode())}: not handed on, since the workflow file does not have it"
                )
            for name, text in read.texts.items():
                await self.log.remark(f"output {name}: bytes: {len(text.encode())}")
            succeeded = replace(succeeded, outputs=tuple(read.texts.items()))
        return await self._with_artifacts(source, succeeded)

    async def _with_artifacts(self, source: ArtifactSource, succeeded: Outcome) -> Outcome:
        handed: list[HandedArtifact] = []
        for spec in self.attempt.spec.artifacts:
            if self.keeping is None:
                return replace(
                    succeeded,
                    state=JobState.ERRORED,
                    reason=Reason.ARTIFACT_NOT_STORED,
                    detail=_NO_DIRECTORY,
                    outputs=(),
                )
            record = await self.keeping.keep(source, spec, self.attempt.record_artifact, self.stop)
            if isinstance(record, Outcome):
                return replace(
                    succeeded, state=record.state, reason=record.reason, detail=record.detail, outputs=()
                )
            handed.append(
                HandedArtifact(name=record.name, digest=record.digest, size=record.size, files=record.files)
            )
            await self.log.remark(
                f"artifact {spec.name}: files: {record.files}, bytes: {record.size}, sha256:{record.digest}"
            )
        return replace(succeeded, artifacts=tuple(handed))


def variables_of_needs(
    needed: Sequence[NeededOutput], jobs: Mapping[str, NeededJob]
) -> Mapping[str, str] | Outcome:
    """Return the outputs of needed jobs by their variables.

    Those of jobs that did not succeed are left out.
    """
    variables = {
        each.variable: job.outputs[each.name]
        for each in needed
        if (job := jobs.get(each.job)) is not None and each.name in job.outputs
    }
    size = sum(len(text.encode()) for text in variables.values())
    if size > MAX_GIVEN_BYTES:
        return Outcome(
            state=JobState.FAILED,
            reason=Reason.OUTPUT_REFUSED,
            detail=f"the outputs of needed jobs have {size} bytes together; a job may get {MAX_GIVEN_BYTES}",
        )
    return variables


def _without_outputs(succeeded: Outcome, why: NotCollected) -> Outcome:
    if why.reason is Reason.ARTIFACT_NOT_STORED:
        return replace(succeeded, state=JobState.ERRORED, reason=why.reason, detail=why.detail[:1000])
    return replace(
        succeeded, state=JobState.FAILED, reason=Reason.OUTPUT_REFUSED, detail=f"outputs: {why.detail}"[:1000]
    )


def _unavailable(detail: str) -> Outcome:
    return Outcome(state=JobState.ERRORED, reason=Reason.ARTIFACT_UNAVAILABLE, detail=detail)
