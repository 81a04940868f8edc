"""forge-integration: turns webhooks of forges into durable job requests."""
