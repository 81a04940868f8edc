"""The schema of the statuses on PostgreSQL, as numbered SQL files."""
