"""Looking up a name, and connecting to one of several addresses."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pairmq.testing import in_virtual_time
from pairmq.transport import OwnThreads, _dial, dial, lookup

SILENT, REFUSING, GOOD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


@pytest.fixture
def network(monkeypatch):
    """Has a name resolve to given addresses, and lets connections to them behave; gives the sockets by address."""
    sockets: dict[str, list[socket.socket]] = {}

    def prepare(*addresses: str) -> dict[str, list[socket.socket]]:
        loop = asyncio.get_running_loop()

        async def resolve(host, port):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        async def connect(connection, address):
            sockets.setdefault(address[0], []).append(connection)
            if address[0] == SILENT:
                await asyncio.sleep(3600)
            if address[0] == REFUSING:
                raise ConnectionRefusedError(address[0])

        monkeypatch.setattr(_dial, "lookup", resolve)
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


@pytest.mark.parametrize("host", ["192.0.2.3", "::1"])
async def test_an_address_is_left_to_the_driver(host):
    assert await dial(host, 6379) is None


@in_virtual_time
async def test_a_name_of_one_address_is_connected_to(network):
    sockets = network(GOOD)
    connection = await dial("broker", 6379)
    assert connection is sockets[GOOD][0]
    connection.close()


@pytest.fixture
def resolver(monkeypatch):
    """A resolver that hangs for the name ``east`` until it is set free; gives the names that it was asked for."""
    free, asked = threading.Event(), []

    def resolve(host, port, **hints):
        asked.append(host)
        if host == "east":
            free.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (GOOD, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield asked
    free.set()


async def test_lookups_that_hang_hold_up_no_other_name(resolver):
    """An event loop of a machine with two processors looks up six names at once: a primary whose name server is silent
    took them all, and the secondary could not be connected to."""
    with ThreadPoolExecutor(1) as few:
        asyncio.get_running_loop().set_default_executor(few)
        hanging = [asyncio.create_task(lookup("east", 1)) for _ in range(3)]
        while not resolver:
            await asyncio.sleep(0)
        assert (await lookup("west", 1))[0][4] == (GOOD, 1)
        for task in hanging:
            task.cancel()


async def test_a_lookup_that_hangs_is_shared_until_it_is_old(resolver, monkeypatch):
    port = 2  # a lookup of another test may still be under way
    hanging = [asyncio.create_task(lookup("east", port)) for _ in range(3)]
    await asyncio.sleep(0)
    hanging[0].cancel()
    await lookup("west", 1)
    while "east" not in resolver:
        await asyncio.sleep(0)
    assert resolver.count("east") == 1
    monkeypatch.setattr(_dial, "_SHARED", -1.0)  # the name server may be back
    hanging.append(asyncio.create_task(lookup("east", port)))
    while resolver.count("east") < 2:
        await asyncio.sleep(0)
    for task in hanging:
        task.cancel()


async def test_a_name_that_is_not_found_is_looked_up_anew(monkeypatch):
    answers = [socket.gaierror(socket.EAI_AGAIN, "try again"), []]

    def resolve(host, port, **hints):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(socket.gaierror):
        await lookup("broker", 1)
    assert await lookup("broker", 1) == []


@pytest.mark.parametrize("problem", ["can't create new thread at interpreter shutdown", "can't start new thread"])
async def test_where_an_exiting_interpreter_starts_no_threads_the_work_is_done_at_once(monkeypatch, problem):
    def refuse(thread):
        raise RuntimeError(problem)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    if "shutdown" in problem:
        assert await asyncio.get_running_loop().run_in_executor(OwnThreads(), int, "7") == 7
    else:
        with pytest.raises(RuntimeError, match="can't start"):
            OwnThreads().submit(int, "7")
