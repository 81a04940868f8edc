"""RabbitMQ as a broker, on aiormq's connection and our own supervision, publisher and consumer."""
