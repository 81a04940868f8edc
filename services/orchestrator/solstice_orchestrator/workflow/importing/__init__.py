"""Translate workflow files of other systems, and list what has no counterpart. Pure."""
