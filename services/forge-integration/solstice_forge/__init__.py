"""forge-integration: turns what a forge says into durable job requests."""
