"""A broker in a SQLite file: RabbitMQ's semantics for one machine, without a server."""
