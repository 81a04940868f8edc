"""The inbox in one SQLite file."""
