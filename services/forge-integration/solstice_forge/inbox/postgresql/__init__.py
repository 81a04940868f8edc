"""The inbox in a PostgreSQL database, shared by any number of forge-integrations."""

from solstice_forge.inbox.postgresql.inbox import PostgreSQLInbox

__all__ = ["PostgreSQLInbox"]
