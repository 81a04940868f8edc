"""The PostgreSQL schema, migration by migration; it starts with the SQLite schema's second step."""
