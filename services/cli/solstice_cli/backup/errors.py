"""The ways in which a backup or a restore says no."""

from pathlib import Path

from solstice_common.errors import SolsticeError


class BackupDamaged(SolsticeError):
    """The file is no whole backup."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no whole backup: {why}. Use another one")


class FileDamaged(SolsticeError):
    """A database is damaged, so that a copy of it would be worthless."""


class RestoreRefused(SolsticeError):
    """The restore was refused; it changed nothing."""
