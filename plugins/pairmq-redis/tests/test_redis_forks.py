"""A child that is forked while a connection is being made: others are in tests/integration/test_forked_children.py."""

from __future__ import annotations

import subprocess
import sys

# The answer is there when the child is forked, and the parent reads it when the child has ended.
PROGRAM = """
import asyncio, os, sys
from pairmq.plugins import registry

async def server(reader, writer):
    forked = False
    while asked := await reader.read(1000):
        writer.write(b"+PONG\\r\\n" * asked.count(b"*"))
        if not forked:
            forked = True
            if (child := os.fork()) == 0:
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    writer.close()

async def main():
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    async with registry.transport(f"redis://{host}:{port}?connect_timeout=5") as transport:
        await transport.admin.check()
        print("connected")
    listening.close()

asyncio.run(main())
"""


def test_a_child_takes_no_answer_of_a_login():
    ended = subprocess.run([sys.executable, "-u", "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "3\nconnected\n", ended.stderr
