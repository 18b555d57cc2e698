"""The author's own server, and a sender that connects."""

import asyncio
from types import SimpleNamespace

from pairmq.testing.conformance import ServerHarness
from pairmq.testing.servers import ServerProcess as Server
from pairmq.transport import nothing_sent


async def connected():
    pass


self = SimpleNamespace(_connected=connected)
NatsServer = Server
