"""Redis and Valkey as a broker: queues are streams, and every promise is one script."""
