"""The orchestrator: takes job requests from the broker, runs them, and reports their end."""
