"""Serves API v1, the pages, health and metrics over HTTP."""
