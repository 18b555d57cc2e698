"""The author's transport, and a sender that connects."""

import asyncio
from types import SimpleNamespace

from pairmq.transport import Capabilities, Transport, nothing_sent


async def connected():
    pass


self = SimpleNamespace(_connected=connected)
CAPABILITIES, NatsTransport = Capabilities(), Transport
