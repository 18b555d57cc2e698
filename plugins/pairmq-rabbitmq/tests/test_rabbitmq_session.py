"""Closing a connection, whatever the driver does meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aio_pika.tools import OneShotCallback
from aiormq.abc import AbstractConnection

from pairmq_rabbitmq._link import _Underlay


class Silent:
    """A driver whose close handshake is never answered."""

    async def close(self, exc: Any) -> None:
        await asyncio.get_running_loop().create_future()


async def test_a_close_handshake_that_is_cut_off_ends_at_once() -> None:
    async def closed(*_: object) -> None:
        """Never called: the driver does not end."""

    underlay = _Underlay(cast("AbstractConnection", Silent()), OneShotCallback(closed))
    closing = asyncio.create_task(underlay.close(None))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,), timeout=10)
    assert closing.cancelled()
