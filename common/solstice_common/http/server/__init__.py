"""Serves HTTP through uvicorn, within bounds on what a caller can make us hold."""
