"""What a person asks of the orchestrator's database, and of its scheduler in virtual time."""
