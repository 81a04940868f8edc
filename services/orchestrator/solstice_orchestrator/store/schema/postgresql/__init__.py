"""The PostgreSQL schema, migration by migration; it begins where the SQLite one got its second step."""
