"""Loads rows of the SQLite store for a decision, and writes them after it."""
