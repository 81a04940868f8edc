"""Place the artifacts that a job needs into its workspace, before its first step."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.handing_spec import NeededArtifact
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.store.artifact_records import ArtifactView, NeededJob
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.collecting import MAX_DEPTH, MAX_FILES
from solstice_orchestrator.worker.artifacts.placing import (
    NotPlaced,
    Obstacle,
    PlacedFiles,
    PlacingLimits,
    place_files,
)

_MOST_ENTRIES: Final = MAX_FILES * 2 + MAX_DEPTH
"""Files of an artifact, and directories that they need."""


@dataclass(frozen=True, slots=True)
class NeededArtifacts:
    """Places artifacts from the directory of their archives."""

    directory: ArtifactArchives

    async def place(
        self,
        needed: NeededArtifact,
        jobs: Mapping[str, NeededJob],
        workspace: Path,
        stop: asyncio.Event,
    ) -> ArtifactView | Outcome:
        """Return what was placed, or the outcome of the job.

        A cancelled caller waits for the thread that writes the files, which ends soon. Raises OSError when the
        workspace has no room, and RuntimeError when no thread could be started.
        """
        view = _found(needed, jobs)
        if isinstance(view, Outcome):
            return view
        ended = asyncio.Event()
        try:
            placed = await run_to_completion(
                asyncio.to_thread(
                    self._place, view, needed, workspace, lambda: stop.is_set() or ended.is_set()
                ),
                f"artifact {needed.name} of {needed.job}",
            )
        except asyncio.CancelledError:
            ended.set()
            raise
        except _Unreadable as error:
            return _unavailable(needed, str(error))
        return view if isinstance(placed, PlacedFiles) else _outcome(needed, placed)

    def _place(
        self, view: ArtifactView, needed: NeededArtifact, workspace: Path, is_ended: Callable[[], bool]
    ) -> PlacedFiles | NotPlaced:
        try:
            path = self.directory.find(view.digest)
            if path is None:
                raise _Unreadable(
                    f"ARTIFACT_DIRECTORY {self.directory.path} has no archive sha256:{view.digest}"
                )
            archive = path.open("rb", buffering=0)
        except OSError as error:
            raise _Unreadable(f"its archive cannot be opened: {error}") from None
        with archive:
            return place_files(
                _Archive(archive.read),
                workspace,
                into=needed.into,
                limits=PlacingLimits(most_bytes=view.size, most_files=_MOST_ENTRIES),
                digest=view.digest,
                is_ended=is_ended,
            )


class _Unreadable(Exception):
    """The archive cannot be read here."""


@dataclass(frozen=True, slots=True)
class _Archive:
    """An archive whose errors are told apart from those of the workspace."""

    read_bytes: Callable[[int], bytes]

    def read(self, most: int, /) -> bytes:
        try:
            return self.read_bytes(most)
        except OSError as error:
            raise _Unreadable(f"its archive cannot be read: {error}") from None


def _found(needed: NeededArtifact, jobs: Mapping[str, NeededJob]) -> ArtifactView | Outcome:
    job = jobs.get(needed.job)
    if job is None:
        return _missing(needed, "its job is not among the jobs of this run, or of one that it repeats")
    if job.state is not JobState.SUCCEEDED:
        return _missing(needed, f"its job is {job.state.value.replace('_', ' ')}, and hands nothing out")
    view = job.artifacts.get(needed.name)
    if view is None:
        return _missing(needed, "it has expired; run its job again")
    return view


def _described(needed: NeededArtifact) -> str:
    return f"artifact {needed.name} of {needed.job}"


def _missing(needed: NeededArtifact, why: str) -> Outcome:
    return Outcome(
        state=JobState.FAILED, reason=Reason.ARTIFACT_MISSING, detail=f"{_described(needed)}: {why}"
    )


def _unavailable(needed: NeededArtifact, why: str) -> Outcome:
    return Outcome(
        state=JobState.ERRORED,
        reason=Reason.ARTIFACT_UNAVAILABLE,
        detail=f"{_described(needed)}: {why}"[:1000],
    )


def _outcome(needed: NeededArtifact, why: NotPlaced) -> Outcome:
    match why.obstacle:
        case Obstacle.ENDED:
            return Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED)
        case Obstacle.IN_THE_WAY:
            return Outcome(
                state=JobState.FAILED,
                reason=Reason.ARTIFACT_NOT_PLACED,
                detail=f"{_described(needed)}: in the workspace, {why.detail}"[:1000],
            )
        case _:
            return _unavailable(needed, f"its archive is damaged: {why.detail}")
