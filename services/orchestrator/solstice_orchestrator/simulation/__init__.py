"""Scheduling tried on a trace in virtual time: the decisions are the orchestrator's own, only the store is in memory."""
