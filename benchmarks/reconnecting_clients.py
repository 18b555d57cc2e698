"""What becomes of a publish while RabbitMQ is unavailable, in clients that reconnect by themselves.

A server is killed with SIGKILL and started again. In the meantime aio-pika's robust connection and FastStream's broker
publish with publisher confirms: right after the kill, once the client knows of it, and once the server is back. For
each the end of the publish and its time are printed; one that has not ended after five seconds is cut off.

Run it with: make bench-one NAME=reconnecting_clients
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable

import aio_pika
from faststream.rabbit import RabbitBroker

from pairmq_rabbitmq.testing import RabbitServer

QUEUE = "orders"
LIMIT = 5.0
RECONNECT = 1.0

Publish = Callable[[], Awaitable[object]]


async def outcome(publish: Publish) -> str:
    """How one publish ended, and after how long."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT):
            await publish()
    except TimeoutError:
        return f"not ended after {LIMIT:g} s"
    except Exception as error:  # which one it is, is what is asked
        return f"{type(error).__name__} after {time.monotonic() - began:.2f} s"
    return f"confirmed after {time.monotonic() - began:.2f} s"


async def works_again(publish: Publish) -> str:
    """Until when publishes fail, once the server is reachable."""
    began = time.monotonic()
    failed = 0
    while time.monotonic() - began < 30:
        if (await outcome(publish)).startswith("confirmed"):
            return f"confirmed {time.monotonic() - began:.1f} s after the server was back; {failed} failed before"
        failed += 1
        await asyncio.sleep(0.1)
    return "fails for 30 s and longer"


async def measured() -> dict[str, dict[str, str]]:
    """Kill the server under both clients."""
    found: dict[str, dict[str, str]] = {}
    with RabbitServer() as server:
        connection = await aio_pika.connect_robust(server.url, reconnect_interval=RECONNECT)
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True)
        broker = RabbitBroker(server.url, reconnect_interval=RECONNECT, logger=None)
        await broker.connect()
        clients: dict[str, Publish] = {
            "aio-pika, connect_robust": lambda: channel.default_exchange.publish(aio_pika.Message(b"42"), QUEUE),
            "FastStream, RabbitBroker": lambda: broker.publish("42", QUEUE),
        }
        for name, publish in clients.items():
            found[name] = {"all is well": await outcome(publish)}
        server.kill()
        for name, publish in clients.items():
            found[name]["right after the kill"] = await outcome(publish)
        await asyncio.sleep(2 * RECONNECT)
        for name, publish in clients.items():
            found[name]["while it is stopped"] = await outcome(publish)
        # In this thread: the server ends with the thread that started it.
        server.start()
        for name, publish in clients.items():
            found[name]["once it is back"] = await works_again(publish)
        await broker.stop()
        await connection.close()
    return found


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="as JSON on stdout")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found = asyncio.run(measured())
    if wanted.json:
        print(json.dumps(found, indent=2))
    else:
        for name, rows in found.items():
            print(name)
            for when, what in rows.items():
                print(f"  {when:22} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
