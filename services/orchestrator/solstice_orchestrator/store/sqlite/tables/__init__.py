"""How rows of the SQLite store are loaded for a decision and written after it."""
