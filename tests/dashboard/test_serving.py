"""A dashboard served by itself: its port, its end, and what it says where it can't be."""

from __future__ import annotations

import asyncio
import signal
import socket

import httpx
import pytest

from pairmq import Pair
from pairmq.dashboard import Address, is_loopback, serve, serving
from pairmq.model import ConfigurationError
from pairmq.testing import memory_broker


@pytest.fixture
async def pair():
    async with memory_broker() as east, memory_broker() as west, Pair.connect(east.url, west.url) as opened:
        yield opened


async def test_it_is_served_at_any_free_port_and_gone_at_the_end(pair):
    async with serving(pair, port=0) as address, httpx.AsyncClient(timeout=30) as client:
        told = (await client.get(f"{address.url}api/status")).json()
        assert told["pair"] == pair.name
        assert (await client.get(address.url)).headers.get("server") is None
    with pytest.raises(httpx.ConnectError):
        httpx.get(address.url)


async def test_it_leaves_the_pair_open_and_unwatched(pair):
    sinks = pair._emit._sinks
    async with serving(pair, port=0):
        assert len(pair._emit._sinks) == len(sinks) + 1
    assert pair._emit._sinks == sinks
    pair.sender("orders")


async def test_a_port_that_is_taken_is_named(pair):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is in use: choose another one, or 0"):
            async with serving(pair, port=port):
                pass


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("no.such.name.invalid", 0), ("127.0.0.1", 70000)])
async def test_an_address_that_is_not_ours_is_named(pair, host, port):
    with pytest.raises(ConfigurationError, match=r"can't listen at|port 70000"):
        async with serving(pair, host=host, port=port):
            pass


async def test_beyond_loopback_nothing_is_shown_without_the_token(pair):
    async with serving(pair, host="0.0.0.0", port=0) as address, httpx.AsyncClient(timeout=30) as client:
        assert address.url.startswith("http://127.0.0.1:")
        assert (await client.get(f"{address.url}api/status")).status_code == 401
        headers = {"authorization": f"Bearer {address.token}"}
        assert (await client.get(f"{address.url}api/status", headers=headers)).status_code == 200


async def test_it_takes_no_signal_from_the_program_that_it_is_in(pair):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with serving(pair, port=0) as address, httpx.AsyncClient(timeout=30) as client:
        await client.get(address.url)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_serve_ends_when_it_is_cancelled(pair):
    task = asyncio.create_task(serve(pair, port=0))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_connection_that_says_nothing_does_not_hold_up_the_end(pair):
    async with asyncio.timeout(60):
        async with serving(pair, port=0) as address:
            port = int(address.url.rstrip("/").rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n")
            await writer.drain()
    writer.close()


def test_the_token_is_not_in_the_repr_of_an_address():
    address = Address("http://127.0.0.1:1/", "a-secret-of-these-tests")
    assert "secret" not in repr(address)
    assert address.operator_url == "http://127.0.0.1:1/#token=a-secret-of-these-tests"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "LOCALHOST"])
def test_loopback_is_known(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", ""])
def test_what_others_reach_is_no_loopback(host):
    assert not is_loopback(host)
