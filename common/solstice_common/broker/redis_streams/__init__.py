"""Redis and Valkey as a broker: queues are streams, and each operation is one script."""
