"""The setting that every command on the job store has."""

from typing import ClassVar

from pydantic import Field, field_validator

from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import SolsticeSettings, is_memory, is_postgresql, shared_url, state_directory


def _default_database_url() -> str:
    return f"sqlite:///{state_directory() / 'orchestrator.sqlite3'}"


class StoreSettings(SolsticeSettings):
    """Where jobs are stored."""

    store_may_be_memory: ClassVar[bool] = False
    """Whether this process alone uses the store."""

    database_url: SecretUrl = Field(
        default_factory=_default_database_url,
        description="Where runs and jobs are stored: sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE.",
    )

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if url.partition(":")[0] != "sqlite" and not is_postgresql(url) and not is_memory(url):
            raise ValueError("must start with sqlite:/// or postgresql://")
        return url if cls.store_may_be_memory else shared_url(url)
