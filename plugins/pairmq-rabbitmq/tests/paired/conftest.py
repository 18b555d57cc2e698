"""A connection of the drop-in to a real RabbitMQ, with a backlog in this process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pairmq import PairOptions
from pairmq_rabbitmq.paired import PairedConnection, connect_robust
from pairmq_rabbitmq.testing import RabbitServer

OPTIONS: dict[str, Any] = {
    "backlog_queue_count": 2,
    "failover_interval": 0.2,
    "ping_primary_interval": 0.2,
    "attempt_timeout": 15.0,
    "send_timeout": 60.0,
    "enable_syphon": True,
    "syphon_receive_wait": 1.0,
    "flap_window": 0.0,
    "backlog_retry_interval": 0.2,
    "close_grace": 2.0,
    "continuity": (),
}

Connect = Callable[..., Awaitable[PairedConnection]]


@pytest.fixture
async def connect(rabbit: RabbitServer) -> AsyncIterator[Connect]:
    """Opens connections that are closed after the test; keyword arguments are the pair's options, or aio-pika's."""
    async with AsyncExitStack() as stack:

        async def make(*, on_receipt: Any = None, **given: Any) -> PairedConnection:
            options = PairOptions(**{**OPTIONS, **{name: given.pop(name) for name in set(OPTIONS) & set(given)}})
            secondary = f"memory://backlog-{uuid.uuid4().hex}"
            made = await connect_robust(
                rabbit.url, secondary=secondary, options=options, on_receipt=on_receipt, reconnect_interval=0.2, **given
            )
            stack.push_async_callback(made.close)
            return made

        yield make
