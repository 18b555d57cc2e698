"""A channel and a message of the program's own."""

import aio_pika

_own = await aio_pika.connect("amqp://guest:guest@127.0.0.1/")
channel = await _own.channel()
await channel.declare_queue("orders", durable=True)
message = aio_pika.Message(b"42")
