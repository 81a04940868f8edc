"""Formats of the API and the pages: parameters, JSON, event streams and log text."""
