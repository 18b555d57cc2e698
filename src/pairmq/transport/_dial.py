"""Looking up a host's name, and connecting to it where it has several addresses, one of which may be dead."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from pairmq.transport._scope import start_task
from pairmq.transport._worker import OwnThreads

_PATIENCE = 0.25  # s until the next address is tried as well, as in RFC 8305
_SHARED = 5.0  # s for which callers join a lookup that is under way

_threads = OwnThreads()
_lookups: dict[tuple[str, int, int], tuple[float, Future[list[Any]]]] = {}


async def lookup(host: str, port: int) -> list[Any]:
    """Look up a host's name in a thread that is used for nothing else.

    An event loop has few threads for this. Lookups of one broker's name that hang would keep those of the other
    broker's from beginning: the resolver of names is a part of many an outage.

    Args:
        host: a name or an address.
        port: of TCP.

    Returns:
        What `socket.getaddrinfo` returns; nothing for an address.

    Raises:
        OSError: the name has no address, or can't be looked up.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return await asyncio.wrap_future(_looked_up(host, port))
    return []


def _looked_up(host: str, port: int) -> Future[list[Any]]:
    """Begin a lookup, or join one: attempts to connect end sooner than lookups that hang."""
    key = (host, port, os.getpid())  # a forked child has none of its parent's threads
    now = time.monotonic()
    # Without a lock, which a fork could leave locked: two threads may do the same lookup.
    begun_at, found = _lookups.get(key, (0.0, None))
    if found is None or now - begun_at > _SHARED:
        found = _threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        _lookups[key] = now, found
    found.add_done_callback(lambda ended: _forget(key, ended))
    return found


def _forget(key: tuple[str, int, int], ended: Future[list[Any]]) -> None:
    if _lookups.get(key, (0.0, None))[1] is ended:
        _lookups.pop(key, None)


async def dial(host: str, port: int) -> socket.socket | None:
    """Connect to the first of a name's addresses that answers, trying the next one when one is silent or has failed.

    The name is looked up by `lookup`.

    An event loop tries them one after the other: a dead host that drops packets would use up every attempt's time.
    asyncio's own way around that, `happy_eyeballs_delay`, is missing in uvloop, and fails with eager tasks in some
    releases of Python.

    Args:
        host: a name or an address.
        port: of TCP.

    Returns:
        The socket, not blocking; None for an address: nothing was done.

    Raises:
        OSError: why the first address failed, when all have; or why the name was not found.
    """
    found = await lookup(host, port)
    return await _first(found) if found else None


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
