"""The commands for the orchestrator's database, and for its scheduler in virtual time."""
