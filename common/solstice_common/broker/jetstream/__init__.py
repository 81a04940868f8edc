"""NATS JetStream as a broker: one stream for each queue, and a table of bindings."""
