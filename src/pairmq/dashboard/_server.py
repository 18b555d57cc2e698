"""Serves a dashboard by itself, without a web application around it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn

from pairmq.dashboard._app import Dashboard, is_address
from pairmq.dashboard._looks import Brokers
from pairmq.model import ConfigurationError, Entity
from pairmq.pair import Pair

_AT_ONCE = 100  # connections: enough, and they must not exhaust a sender's file descriptors
_GRACE = 1  # s that answers under way get at the end
_LAST = 3.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a dashboard is served."""

    url: str
    token: str = field(repr=False)

    @property
    def operator_url(self) -> str:
        """The page's URL with the token after ``#``, which a browser never sends: no log and no proxy sees it."""
        return f"{self.url}#token={self.token}"


@asynccontextmanager
async def serving(
    of: Pair | Brokers,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    read_only: bool = False,
    allowed_hosts: Collection[str] = (),
    entities: Iterable[Entity] = (),
) -> AsyncIterator[Address]:
    """Serve a dashboard for as long as the ``async with`` block lasts.

    Args:
        of: a pair, or two brokers.
        host: the address to listen at. Beyond loopback every request needs the token, and traffic is not encrypted: put
            a proxy with TLS before it.
        port: the port to listen at; 0 for any free one.
        token: as for `Dashboard`.
        read_only: as for `Dashboard`.
        allowed_hosts: as for `Dashboard`.
        entities: as for `Dashboard`.

    Raises:
        ConfigurationError: the port is taken, the address is not one of this machine, or the token can't be one.

    It handles no signals. Cancelling it ends the server; answers under way get a second.
    """
    listener = await _listening(host, port)
    with listener:
        named = {*allowed_hosts, *(() if is_address(host) else (host,))}
        async with Dashboard(
            of,
            token=token,
            read_only=read_only,
            open_to_read=is_loopback(listener.getsockname()[0]),
            allowed_hosts=named,
            entities=entities,
        ) as dashboard:
            server = _Server(
                uvicorn.Config(
                    dashboard,
                    log_config=None,
                    access_log=False,
                    lifespan="off",
                    ws="none",
                    proxy_headers=False,
                    server_header=False,
                    limit_concurrency=_AT_ONCE,
                    timeout_graceful_shutdown=_GRACE,
                )
            )
            task = asyncio.create_task(server.serve(sockets=[listener]), name="dashboard")
            try:
                yield Address(_url(host, listener.getsockname()[1]), dashboard.token)
            finally:
                server.should_exit = True
                _, running = await asyncio.wait((task,), timeout=_LAST)
                if running:
                    task.cancel()
                    await asyncio.wait(running, timeout=1)


async def serve(
    of: Pair | Brokers,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    read_only: bool = False,
    allowed_hosts: Collection[str] = (),
    entities: Iterable[Entity] = (),
) -> None:
    """Serve a dashboard until it is cancelled; the arguments and what it raises are those of `serving`.

    Without ``token`` a random, unknown one is used: use `serving`, which returns it, to hold and to mark.
    """
    async with serving(
        of,
        host=host,
        port=port,
        token=token,
        read_only=read_only,
        allowed_hosts=allowed_hosts,
        entities=entities,
    ):
        await asyncio.Event().wait()


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone; of names only ``localhost`` is known."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


class _Server(uvicorn.Server):
    """A server that leaves signals to the program it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port {port}: it must be 0 to 65535")  # the resolver would take the rest of it
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # A port with closed connections of the last run is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(_why_not(host, port, error)) from error
    return listener


def _why_not(host: str, port: int, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another one, or 0 for any free port"
    if number == errno.EACCES:
        return f"port {port} needs privileges that this program lacks: choose one above 1023"
    return f"can't listen at {host}, port {port}: {error}"


def _url(host: str, port: int) -> str:
    # "Every address" is not a valid destination; from this machine use loopback.
    called = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104  # compared, not bound
    return f"http://[{called}]:{port}/" if ":" in called else f"http://{called}:{port}/"
