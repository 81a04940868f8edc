"""What the orchestrator serves over HTTP: API v1, the pages, health and metrics."""
