"""Read-only queries of the PostgreSQL store."""
