"""A child that is forked inside of an open pair: real brokers are in tests/integration/test_forked_children.py."""

from __future__ import annotations

import subprocess
import sys

# A broker that gives back what it reads, and a driver that does a close handshake when its task ends, as drivers do.
PROGRAM = """
import asyncio, os, sys
from pairmq import Entity, Message, Pair
from pairmq.transport import keep_from_children

async def broker(reader, writer):
    while data := await reader.read(100):
        writer.write(data)

async def driver(writer):
    try:
        await asyncio.Event().wait()
    finally:
        writer.write(b"close")
        writer.close()

async def main():
    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    keep_from_children(writer, lambda writer: writer.get_extra_info("socket"))
    task = asyncio.create_task(driver(writer))
    async with Pair.connect("memory://a", "memory://b") as pair:
        await pair.primary.admin.create(Entity("orders"))
        async with pair.sender("orders") as sender, pair.receiver("orders") as receiver:
            await sender.send(Message(b"1"))
            if (child := os.fork()) == 0:
                try:
                    await sender.send(Message(b"2"))
                except RuntimeError as error:
                    sys.exit(3 if "another event loop" in str(error) else str(error))
            # In a thread, whose end reaches the loop by a socket that the child has, too.
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            writer.write(b"parent")
            print(os.waitstatus_to_exitcode(status), await reader.read(100), len(await receiver.receive(9, 0)))
    task.cancel()
    server.close()

asyncio.run(main())
"""


def test_a_child_that_exits_inside_of_a_pair_touches_nothing_of_the_parent():
    ended = subprocess.run([sys.executable, "-u", "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "3 b'parent' 1\n", ended.stderr
