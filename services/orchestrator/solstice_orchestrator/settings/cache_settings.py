"""The settings of caches."""

from pathlib import Path

from pydantic import Field

from solstice_common.settings import SolsticeSettings, state_directory


def _default_directory() -> Path:
    return state_directory() / "caches"


class CacheSettings(SolsticeSettings):
    """Where the caches of jobs are, and how much of them."""

    cache_directory: Path = Field(
        default_factory=_default_directory,
        description="Directory of the caches of jobs; several orchestrators may share one.",
    )
    cache_bucket: str = Field(
        default="",
        description="Bucket of S3 for caches (s3://BUCKET/FOLDER), with the extra s3; empty: they are in CACHE_DIRECTORY, which is "
        "for temporary files otherwise.",
    )
    cache_endpoint: str = Field(
        default="",
        pattern=r"^(https?://[^\s@]+)?$",
        description="Address of what serves the bucket (https://s3.example:9000); empty: AWS in CACHE_REGION.",
    )
    cache_region: str = Field(default="us-east-1", description="Region of the bucket.")
    cache_credentials: str = Field(
        default="", description="TOML file with the key_id and secret for the bucket, and perhaps a token."
    )
    cache_max_mib: int = Field(default=2048, ge=1, description="Size of the files of one cache.")
    cache_repository_mib: int = Field(
        default=5120,
        ge=0,
        description="Space of all caches of one repository, compressed; the least recently used go. 0: without a limit.",
    )
    cache_disk_mib: int = Field(
        default=20480,
        ge=0,
        description="Space of all caches, compressed; the least recently used go. 0: without a limit.",
    )
    cache_days: float = Field(
        default=14.0, ge=0, description="How long a cache stays that no job restores; 0: without a limit."
    )
