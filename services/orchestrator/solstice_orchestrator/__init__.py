"""The orchestrator: takes job requests from the broker, stores them, runs their jobs and tells how they ended."""
