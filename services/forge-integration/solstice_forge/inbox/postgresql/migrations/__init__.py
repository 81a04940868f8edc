"""The schema of the inbox on PostgreSQL, as numbered SQL files."""
