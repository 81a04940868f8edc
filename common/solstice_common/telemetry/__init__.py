"""Logs, log events and metrics that both services share."""
