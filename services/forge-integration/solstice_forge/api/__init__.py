"""API v1 of forge-integration: ask for a job, read the decision log."""
