"""Read-only queries of the SQLite store."""
