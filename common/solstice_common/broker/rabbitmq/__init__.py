"""RabbitMQ as a broker: aiormq's connection, with our supervision, publisher and consumer."""
