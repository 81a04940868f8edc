"""Describes a backup: its moment, its databases and their digests."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from solstice_cli.backup.parts import DatabaseName


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArchiveMember(_Frozen):
    """One member of the archive."""

    name: str
    size: int
    """Its bytes before compression."""
    sha256: str
    table: str = ""
    """The table of PostgreSQL; empty for a whole SQLite file."""
    columns: tuple[str, ...] = ()
    rows: int = 0


class SequenceState(_Frozen):
    """Where a sequence of PostgreSQL goes on counting."""

    last_value: int
    is_called: bool


class DatabaseCopy(_Frozen):
    """The copy of one database."""

    name: DatabaseName
    kind: Literal["sqlite", "postgresql"]
    where: str
    """Its place at the time, without a password."""
    migrations: Mapping[int, str]
    """The version and checksum of each migration that it had."""
    members: tuple[ArchiveMember, ...]
    sequences: Mapping[str, SequenceState] = {}

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)

    @property
    def version(self) -> int:
        return max(self.migrations)


class BackupManifest(_Frozen):
    """What a backup says of itself."""

    format: Literal[1] = 1
    backup_id: str
    solstice_version: str
    created_at: float
    """The moment of all copies, in seconds since the epoch."""
    left_out: tuple[str, ...]
    """What the backup does not hold, as sentences."""
    databases: tuple[DatabaseCopy, ...]
