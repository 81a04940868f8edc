"""The settings of artifacts."""

from pathlib import Path

from pydantic import Field

from solstice_common.settings import SolsticeSettings, state_directory


def _default_directory() -> Path:
    return state_directory() / "artifacts"


class ArtifactSettings(SolsticeSettings):
    """Where the artifacts of jobs are kept, and how much and how long."""

    artifact_directory: Path = Field(
        default_factory=_default_directory,
        description="Directory of the artifacts of jobs; all orchestrators of a store share one.",
    )
    artifact_max_mib: int = Field(default=1024, ge=1, description="Size of one artifact.")
    artifact_disk_mib: int = Field(
        default=10240,
        ge=0,
        description="Disk space of all artifacts of the store, equal ones counted once; 0: without a limit.",
    )
    artifact_days: float = Field(
        default=30.0,
        gt=0,
        description="How long an artifact is kept that says no retention; no longer than its run (RETENTION_DAYS).",
    )
