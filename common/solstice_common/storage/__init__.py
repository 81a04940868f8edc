"""Databases under both services: SQLite and PostgreSQL, written in batches, and their migrations."""
