"""The steps of the schema on SQLite."""
