"""Owns the comparison of a JetStream server with what must be there."""
