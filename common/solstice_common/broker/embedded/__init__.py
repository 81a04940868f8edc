"""An embedded broker in a SQLite file, with RabbitMQ's semantics for one machine."""
