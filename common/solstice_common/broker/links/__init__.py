"""What brokers with a server share: one supervised connection, its tasks, and calls of publish."""
