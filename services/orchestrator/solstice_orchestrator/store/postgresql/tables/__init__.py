"""How rows of the PostgreSQL store are locked, loaded for a decision, and written after it."""
