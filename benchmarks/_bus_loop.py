"""A loop as one would write it with azure-servicebus to move a queue to another namespace: SOURCE TARGET FROM TO N.

Receive up to N messages, which the client fetches ahead, send their bodies in full batches, and when all are confirmed,
complete them side by side. It restores nothing, checks nothing and renews no lock; what fails, ends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

_WAIT = 5.0  # s for the first message of each turn


async def full_batches(sender: ServiceBusSender, bodies: Iterable[bytes]) -> list[ServiceBusMessageBatch]:
    """As few batches as the link takes."""
    batches = [await sender.create_message_batch()]
    for body in bodies:
        message = ServiceBusMessage(body)
        try:
            batches[-1].add_message(message)
        except ValueError:  # it is full
            batches.append(await sender.create_message_batch())
            batches[-1].add_message(message)
    return batches


async def move(source: str, target: str, queue: str, to: str, most: int) -> None:
    """Until nothing is left."""
    async with (
        ServiceBusClient.from_connection_string(source) as west,
        ServiceBusClient.from_connection_string(target) as east,
        west.get_queue_receiver(queue, prefetch_count=most) as receiver,
        east.get_queue_sender(to) as sender,
    ):
        while found := await receiver.receive_messages(most, _WAIT):
            for batch in await full_batches(sender, (b"".join(message.body) for message in found)):
                await sender.send_messages(batch)
            await asyncio.gather(*map(receiver.complete_message, found))


if __name__ == "__main__":
    asyncio.run(move(*sys.argv[1:5], int(sys.argv[5])))
