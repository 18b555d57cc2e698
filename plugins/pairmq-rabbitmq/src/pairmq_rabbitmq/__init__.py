"""RabbitMQ for PairMQ: queues and topics over AMQP 0-9-1, on aio-pika."""
