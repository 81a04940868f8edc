"""API v1: its routes, its event streams and its OpenAPI document."""
