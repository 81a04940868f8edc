"""Commands' connections to RabbitMQ over aio-pika, and its dead-letter queues."""
