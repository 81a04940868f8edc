"""Which job starts next, on which worker, within which limits. Pure."""
