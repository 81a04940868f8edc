"""Calls the forges: one module per forge builds calls, one client makes them."""
