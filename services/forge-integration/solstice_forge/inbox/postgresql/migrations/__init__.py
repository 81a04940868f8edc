"""Numbered SQL files: the inbox on PostgreSQL."""
