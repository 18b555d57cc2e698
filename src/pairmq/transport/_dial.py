"""Connecting to a host whose name has several addresses, one of which may be dead."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from pairmq.transport._tasks import start_task

_PATIENCE = 0.25  # s until the next address is tried as well, as in RFC 8305


async def dial(host: str, port: int) -> socket.socket | None:
    """Connect to the first of a name's addresses that answers, trying the next one when one is silent or has failed.

    An event loop tries them one after the other: a dead host that drops packets would use up every attempt's time.
    asyncio's own way around that, `happy_eyeballs_delay`, is missing in uvloop, and fails with eager tasks in some
    releases of Python.

    Args:
        host: a name or an address.
        port: of TCP.

    Returns:
        The socket, not blocking; None for an address, or a name with one: nothing was done.

    Raises:
        OSError: why the first address failed, when all have.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return None
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await _first(found) if len(found) > 1 else None


async def _first(found: Sequence[Any]) -> socket.socket:
    untried = list(found)
    trials: set[asyncio.Task[socket.socket]] = set()
    failed: BaseException | None = None
    try:
        while untried or trials:
            if untried:
                trials.add(start_task(_connected(untried.pop(0)), name="dial"))
            patience = _PATIENCE if untried else None
            ended, _ = await asyncio.wait(trials, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for trial in ended:
                trials.discard(trial)
                if (error := trial.exception()) is None:
                    return trial.result()
                failed = failed or error
    finally:
        for trial in trials:
            trial.cancel()
            trial.add_done_callback(_close)
    raise failed or OSError("the name has no address")


async def _connected(found: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, address = found
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def _close(trial: asyncio.Task[socket.socket]) -> None:
    """One that nothing waits for any more may have connected."""
    if not trial.cancelled() and trial.exception() is None:
        trial.result().close()
