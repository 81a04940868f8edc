"""Serves HTTP through uvicorn, and bounds the resources that callers can take."""
