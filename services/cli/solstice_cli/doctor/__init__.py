"""Checks a set-up, and names what to fix."""
