"""The inbox on one SQLite file."""
