"""RabbitMQ as a broker: aiormq's connection, with our own supervision, publisher and consumer."""
