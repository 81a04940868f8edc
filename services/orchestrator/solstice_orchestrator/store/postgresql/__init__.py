"""The job store on a PostgreSQL database, shared by any number of orchestrators."""

from solstice_orchestrator.store.postgresql.store import PostgreSQLStore

__all__ = ["PostgreSQLStore"]
