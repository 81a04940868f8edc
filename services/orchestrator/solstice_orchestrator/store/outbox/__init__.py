"""The messages that a transaction publishes: statuses, dead letters, and their batches. Pure."""
