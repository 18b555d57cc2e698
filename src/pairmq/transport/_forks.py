"""Connections that a forked child inherits, and must not touch.

What ends in the child would end in the parent, too: as the child exits, `asyncio.run` cancels its tasks, a driver does
its close handshake, and the broker closes the connection that the parent uses. And asyncio takes what it closes out of
the ``epoll`` that both processes share. So the child has a dead socket in place of each connection, and an ``epoll`` of
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")


class HasDescriptor(Protocol):
    """A socket, or what has one."""

    def fileno(self) -> int:
        """Its file descriptor; below 0, or an exception, once it is closed."""


_connections: WeakKeyDictionary[Any, Callable[[Any], HasDescriptor | None]] = WeakKeyDictionary()
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_nowhere: list[socket.socket] = []


def keep_from_children(owner: T, socket_of: Callable[[T], HasDescriptor | None]) -> None:
    """Replace a connection's socket by a dead one in processes that are forked from this one.

    To be called in the connection's event loop, once for each connection, before anything is read from it: a child that
    ends may take what comes. Nothing changes in this process.

    Args:
        owner: what has the connection; it is not kept alive.
        socket_of: finds its socket when the process forks; None when it is closed, or not made yet.
    """
    _connections[owner] = socket_of
    _loops.add(asyncio.get_running_loop())


def _in_child() -> None:
    for owner, socket_of in tuple(_connections.items()):
        with contextlib.suppress(Exception):  # it is closed
            found = socket_of(owner)
            if found is not None and (descriptor := found.fileno()) >= 0:
                _replace(descriptor)
    _connections.clear()
    for loop in _loops:
        # Of asyncio's own loop; uvloop begins anew by itself.
        selector = getattr(loop, "_selector", None)
        if isinstance(selector, selectors.EpollSelector):
            _leave_epoll(selector)
    _loops.clear()


def _replace(descriptor: int) -> None:
    """Let what is read from it be at its end, and what is written go nowhere: an error would be the driver's to log."""
    dead, other = socket.socketpair()
    other.shutdown(socket.SHUT_WR)
    _nowhere.append(other)
    with dead:
        os.dup2(dead.fileno(), descriptor, inheritable=False)


def _leave_epoll(selector: selectors.EpollSelector) -> None:
    with select.epoll() as own:
        for key in selector.get_map().values():
            wanted = select.EPOLLIN * bool(key.events & selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                own.register(key.fd, wanted | select.EPOLLOUT * bool(key.events & selectors.EVENT_WRITE))
        os.dup2(own.fileno(), selector.fileno(), inheritable=False)


os.register_at_fork(after_in_child=_in_child)
