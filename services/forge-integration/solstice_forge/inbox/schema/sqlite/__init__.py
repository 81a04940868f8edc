"""The SQLite schema, migration by migration; a released one never changes."""
