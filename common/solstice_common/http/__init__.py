"""Owns access control and the HTTP server of both services."""
