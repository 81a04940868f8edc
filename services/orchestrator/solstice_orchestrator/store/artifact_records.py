"""The store's promises about artifacts: what is kept, of which job, and until when."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


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


RecordArtifact = Callable[[ArtifactRecord, int], Awaitable[ArtifactAnswer]]
"""Records an artifact of one attempt, within a limit of all together."""


class ArtifactRecords(Protocol):
    """The part of `JobStore` about artifacts that have been recorded."""

    async def artifacts(
        self, *, run_id: str | None = None, job_id: str | None = None
    ) -> Sequence[ArtifactView]:
        """Return unexpired artifacts of a run or job, by jobs and names."""
        ...

    async def expire_artifacts(self, limit: int) -> int:
        """Remove records that have expired, and return how many."""
        ...

    async def recorded_digests(self, digests: Collection[str]) -> frozenset[str]:
        """Return those of the digests that some record names."""
        ...
