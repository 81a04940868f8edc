"""Owns what brokers with a server share: supervised connections, background tasks, pending publishes."""
