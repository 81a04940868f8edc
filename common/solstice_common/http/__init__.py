"""Serves HTTP for both services, with bounds on what a caller can make us hold."""
