"""SQLite and PostgreSQL databases for both services, with batched writes and migrations."""
