"""Owns the caches of jobs: finds, restores and saves them."""
