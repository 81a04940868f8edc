"""Simulate scheduling on a trace in virtual time.

The decisions are the orchestrator's own; only the store is in memory.
"""
