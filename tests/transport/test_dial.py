"""Connecting to a name of several addresses."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pairmq.testing import in_virtual_time
from pairmq.transport import dial

SILENT, REFUSING, GOOD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


@pytest.fixture
def network(monkeypatch):
    """Has a name resolve to given addresses, and lets connections to them behave; gives the sockets by address."""
    sockets: dict[str, list[socket.socket]] = {}

    def prepare(*addresses: str) -> dict[str, list[socket.socket]]:
        loop = asyncio.get_running_loop()

        async def resolve(host, port, **hints):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        async def connect(connection, address):
            sockets.setdefault(address[0], []).append(connection)
            if address[0] == SILENT:
                await asyncio.sleep(3600)
            if address[0] == REFUSING:
                raise ConnectionRefusedError(address[0])

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        monkeypatch.setattr(loop, "sock_connect", connect)
        return sockets

    return prepare


@pytest.mark.parametrize(("first", "waits"), [(SILENT, 0.25), (REFUSING, 0.0)])
@in_virtual_time
async def test_another_address_is_tried_when_the_first_is_silent_or_refuses(network, first, waits):
    """A dead host was waited for in each attempt until the end of its time, and the broker counted as unavailable."""
    sockets = network(first, GOOD)
    began_at = asyncio.get_running_loop().time()
    connection = await dial("broker", 6379)
    assert connection is sockets[GOOD][0]
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(waits, abs=0.01)
    await asyncio.sleep(0.01)
    assert [each.fileno() for each in sockets[first]] == [-1]
    connection.close()


@in_virtual_time
async def test_the_failure_of_the_first_address_is_raised_when_all_have_failed(network):
    network(REFUSING, REFUSING)
    with pytest.raises(ConnectionRefusedError):
        await dial("broker", 6379)


@in_virtual_time
async def test_a_cancelled_dial_leaves_no_socket_open(network):
    sockets = network(SILENT, SILENT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await dial("broker", 6379)
    await asyncio.sleep(0.01)
    assert [each.fileno() for each in sockets[SILENT]] == [-1, -1]


@pytest.mark.parametrize("host", ["192.0.2.3", "::1", "broker"])
@in_virtual_time
async def test_a_host_of_one_address_is_left_to_the_event_loop(network, host):
    assert network(GOOD) == {}
    assert await dial(host, 6379) is None
