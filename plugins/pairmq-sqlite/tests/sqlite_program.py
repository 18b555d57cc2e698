"""A program of its own for the tests that need several processes, or that kill one.

    sqlite_program.py send URL COUNT      sends numbers one after the other, and prints each that was accepted
    sqlite_program.py receive URL WAIT    receives and completes one by one, and prints what it got and completed, until
                                          nothing has come for so many seconds
    sqlite_program.py hold URL COUNT      receives so many, prints them and keeps them
    sqlite_program.py fail URL BYTES      sends a body of so many bytes, and prints how that failed

``--nobody`` gives up root's rights first, ``--file-limit=BYTES`` lets no file grow beyond.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import Transport

QUEUE = Entity("orders")


async def send(transport: Transport, count: int) -> None:
    sender = transport.sender(QUEUE)
    for number in range(count):
        await sender.send(Message(b"%d" % number, message_id=str(number)))
        print("sent", number, flush=True)


async def receive(transport: Transport, wait: int) -> None:
    receiver = transport.receiver(Source(QUEUE))
    while deliveries := await receiver.receive(1, wait):
        print("got", deliveries[0].message.body.decode(), flush=True)
        await receiver.complete(deliveries[0])
        print("completed", deliveries[0].message.body.decode(), flush=True)


async def hold(transport: Transport, count: int) -> None:
    receiver = transport.receiver(Source(QUEUE))
    for delivery in await receiver.receive(count, 0):
        print("got", delivery.message.body.decode(), flush=True)
    await asyncio.Event().wait()


async def fail(transport: Transport, size: int) -> None:
    try:
        await transport.sender(QUEUE).send(Message(bytes(size), message_id="large"))
    except TransportError as error:
        print("failed", error.kind, error.reason, flush=True)
    else:
        print("sent", flush=True)


async def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    what, url, number = words
    async with registry.transport(url) as transport:
        # Only now: what was imported until here may lie where nobody else may read.
        for option in set(sys.argv[1:]) - set(words):
            name, _, value = option.partition("=")
            if name == "--nobody" and os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            elif name == "--file-limit":
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), int(value)))
        await {"send": send, "receive": receive, "hold": hold, "fail": fail}[what](transport, int(number))


if __name__ == "__main__":
    asyncio.run(main())
