"""Starts child processes, exchanges data with them, and ends them with all their descendants."""
