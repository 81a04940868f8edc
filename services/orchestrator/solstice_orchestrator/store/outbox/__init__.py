"""What a transaction tells the outside: statuses, dead letters, and their batches. Pure."""
