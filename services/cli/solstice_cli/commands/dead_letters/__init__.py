"""Owns the commands of `solstice dlq`."""
