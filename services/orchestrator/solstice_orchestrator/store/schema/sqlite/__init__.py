"""The SQLite schema, migration by migration."""
