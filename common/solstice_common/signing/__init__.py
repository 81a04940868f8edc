"""Signs messages, verifies who may sign them, and signs in as a GitHub App."""
