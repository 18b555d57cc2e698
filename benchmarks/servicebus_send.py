"""What a healthy send to Service Bus costs beside azure-servicebus alone: 1 KiB, one at a time, in one run.

One local server, which stores every message on disk before it confirms it. Each contender awaits the confirmation of a
message before it sends the next; both keep one link open. PairMQ makes each message an id, azure-servicebus none.

Run it with: make bench-one NAME=servicebus_send
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from _measuring import Contender, Figures, arguments, interleaved, report
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairmq import Entity, Message, Pair
from pairmq.model import Source
from pairmq_servicebus.testing import ServiceBusServer

BODY = b"x" * 1024
QUEUE = "orders"
OURS, THEIRS = "PairMQ", "azure-servicebus"


async def measure(count: int, rounds: int) -> Figures:
    """Messages a second of each contender, once a round."""
    with ServiceBusServer(queues=[QUEUE]) as east, ServiceBusServer(durable=False) as west:
        async with (
            Pair.connect(east.url, west.url) as pair,
            ServiceBusClient.from_connection_string(east.connection_string) as client,
            client.get_queue_sender(QUEUE) as raw,
        ):
            sender = pair.sender(QUEUE)

            def timed(send: Callable[[], Awaitable[object]]) -> Contender:
                async def run() -> float:
                    await pair.primary.admin.purge(Source(Entity(QUEUE)))
                    started = time.perf_counter()
                    for _ in range(count):
                        await send()
                    return count / (time.perf_counter() - started)

                return run

            contenders = {
                OURS: timed(lambda: sender.send(Message(BODY))),
                THEIRS: timed(lambda: raw.send_messages(ServiceBusMessage(BODY))),
            }
            return await interleaved(contenders, rounds)


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--count", type=int, default=50, help="messages a turn")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.count, options.rounds))
    report(figures, [(OURS, THEIRS)], "messages a second", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
