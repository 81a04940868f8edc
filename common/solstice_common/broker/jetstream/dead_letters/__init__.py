"""Owns how people read and handle the dead letters of a JetStream server."""
