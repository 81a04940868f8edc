"""Runs the steps of a job in a container, and judges how it ended."""
