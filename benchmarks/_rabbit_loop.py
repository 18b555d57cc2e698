"""A loop as one would write it with aio-pika to move a queue to another server: SOURCE TARGET FROM TO PREFETCH.

Each message is published there, and acknowledged when that is confirmed; so many may be unacknowledged. It restores
nothing and checks nothing; what fails, ends it.
"""

from __future__ import annotations

import asyncio
import sys

import aio_pika


async def move(source_url: str, target_url: str, source: str, target: str, prefetch: int) -> None:
    """Until it is ended."""
    async with await aio_pika.connect(source_url) as west, await aio_pika.connect(target_url) as east:
        reading, writing = await west.channel(), await east.channel()
        await reading.set_qos(prefetch)
        queue = await reading.get_queue(source, ensure=False)
        tasks: set[asyncio.Task[None]] = set()

        async def pass_on(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            copy = aio_pika.Message(
                message.body,
                headers=message.headers,
                message_id=message.message_id,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await writing.default_exchange.publish(copy, target)
            await message.ack()

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            task = asyncio.create_task(pass_on(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        await queue.consume(take)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(move(*sys.argv[1:5], int(sys.argv[5])))
