"""The schema of the statuses on SQLite, as numbered SQL files."""
