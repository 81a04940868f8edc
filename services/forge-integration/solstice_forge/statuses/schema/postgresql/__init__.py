"""The PostgreSQL schema, migration by migration."""
