"""Open the parts of the orchestrator from its settings, and close them in order."""
