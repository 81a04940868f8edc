"""Prints answers for a terminal, for a pipe, or as JSON."""
