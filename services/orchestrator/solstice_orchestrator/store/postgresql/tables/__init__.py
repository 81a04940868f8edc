"""Locks and loads rows of the PostgreSQL store for a decision, and writes them."""
