"""Backs up the databases of both services into one file, and restores them."""
