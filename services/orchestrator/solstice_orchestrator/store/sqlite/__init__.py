"""The job store on one SQLite file."""

from solstice_orchestrator.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
