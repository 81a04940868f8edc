"""The store's promises about artifacts: what is kept, of which job, and until when."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from solstice_common.messages.states import JobState

MOST_REPEATED: Final = 100
"""How many runs before are looked at for the needs of a rerun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRecord:
    """An artifact whose archive is in the directory."""

    name: str
    digest: str
    """SHA-256 of its archive, in hexadecimal digits."""
    size: int
    """Bytes of its archive."""
    files: int
    retention_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """A kept artifact, as readers see it."""

    run_id: str
    job_id: str
    job: str
    """The name of its job."""
    attempt: int
    name: str
    digest: str
    size: int
    files: int
    created_at: float
    expires_at: float


class ArtifactAnswer(StrEnum):
    """What became of a record."""

    STORED = "stored"
    FULL = "full"
    """All artifacts together would need more room than they may have."""
    FENCED = "fenced"
    """The attempt is no longer current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededJob:
    """A job that another one needs, with what it has handed out."""

    name: str
    state: JobState
    artifacts: Mapping[str, ArtifactView] = field(default_factory=lambda: MappingProxyType({}))
    """Unexpired ones by their names; none unless the job has succeeded."""
    outputs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Texts by their names; none unless the job has succeeded."""


NeededJobs = Callable[[Collection[str]], Awaitable[Mapping[str, NeededJob]]]
"""Returns jobs that one attempt needs, by their names."""
RecordArtifact = Callable[[ArtifactRecord, int], Awaitable[ArtifactAnswer]]
"""Records an artifact of one attempt, within a limit of all together."""


class ArtifactRecords(Protocol):
    """The part of `JobStore` about artifacts that have been recorded."""

    async def artifacts(
        self, *, run_id: str | None = None, job_id: str | None = None
    ) -> Sequence[ArtifactView]:
        """Return unexpired artifacts of a run or job, by jobs and names."""
        ...

    async def needed_jobs(self, run_id: str, names: Collection[str]) -> Mapping[str, NeededJob]:
        """Return those jobs of a run by their names.

        Those that a rerun has not repeated are jobs of the run before.
        """
        ...

    async def outputs(self, job_id: str) -> Mapping[str, str]:
        """Return the outputs of a job that has succeeded, by their names."""
        ...

    async def expire_artifacts(self, limit: int) -> int:
        """Remove records that have expired, and return how many."""
        ...

    async def recorded_digests(self, digests: Collection[str]) -> frozenset[str]:
        """Return those of the digests that some record names."""
        ...
