"""Owns what both services run on: the process, backoff, pauses, batches, notifications."""
