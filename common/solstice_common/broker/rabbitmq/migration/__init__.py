"""Owns the migration of a live queue to other arguments or another name."""
