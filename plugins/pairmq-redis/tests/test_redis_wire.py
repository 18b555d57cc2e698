"""The connection itself: replies go to whom they are for, and a server that leaves is noticed at once."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Connection

from pairmq.model import Entity, FailureKind, Message, TransportError
from pairmq_redis._transport import RedisTransport, _connection_factory
from pairmq_redis._url import parse_redis_url
from pairmq_redis._wire import RedisWire, Reply

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT = 100.0


async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer whatever a client says when it comes, the PING that asks whether it may stay being the last."""
    while not (await reader.readuntil(b"PING\r\n")).endswith(b"PING\r\n"):
        pass
    writer.write(b"+PONG\r\n")


async def connected(port: int) -> RedisWire:
    # RESP2, and no name of a library: the first command is the PING.
    wire = RedisWire(
        lambda: Connection(host="127.0.0.1", port=port, protocol=2, driver_info=None),
        connect_timeout=LIMIT,
    )
    await wire.open()
    return wire


async def serving(answer: Answer) -> tuple[asyncio.Server, int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_replies_that_come_before_a_caller_takes_them_are_kept() -> None:
    done = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_in(reader, writer)
        await reader.readuntil(b"GET\r\n")
        writer.write(b"$3\r\none\r\n$3\r\ntw")
        await writer.drain()
        await done.wait()
        writer.write(b"o\r\n")

    server, port = await serving(answer)
    async with server, asyncio.timeout(LIMIT):
        wire = await connected(port)
        wire.write([(b"GET",)])
        taken: list[Reply] = []
        while not wire._incoming._parser.has_data():
            await asyncio.sleep(0.01)
        delivering = asyncio.create_task(wire.deliver(taken.append))
        await asyncio.sleep(0)
        assert taken == [b"one"]
        done.set()
        with pytest.raises(ConnectionResetError):
            await delivering
        assert taken == [b"one", b"two"]
        wire.abort()


async def test_a_server_that_leaves_ends_the_connection() -> None:
    server, port = await serving(let_in)
    async with server, asyncio.timeout(LIMIT):
        try:
            wire = await connected(port)
        except ConnectionResetError:
            return  # it was seen to have left while the connection was made
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            await wire.deliver(lambda _: None)
        wire.abort()


async def test_what_is_no_reply_ends_the_connection() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_in(reader, writer)
        await reader.readuntil(b"GET\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    server, port = await serving(answer)
    async with server, asyncio.timeout(LIMIT):
        wire = await connected(port)
        wire.write([(b"GET",)])
        with pytest.raises(Exception, match="Protocol error"):
            await wire.deliver(lambda _: None)
        wire.abort()


def test_making_a_connection_looks_no_version_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an outage there are many, and each would read and parse files on the event loop."""
    make = _connection_factory(parse_redis_url("redis://127.0.0.1"), None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: pytest.fail(f"the version of {name} was looked up"))
    assert make().host == "127.0.0.1"


async def test_a_server_that_returns_what_it_is_sent_confirms_nothing() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    server, port = await serving(echo)
    transport = RedisTransport(f"redis://127.0.0.1:{port}/0")
    async with server, asyncio.timeout(LIMIT):
        try:
            with pytest.raises(TransportError, match="does not answer as Redis does: check host and port") as caught:
                await transport.sender(Entity("orders")).send(Message(b"1"))
        finally:
            await transport.close()
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert not caught.value.maybe_applied


async def test_an_answer_that_is_no_answer_to_a_send_leaves_it_in_doubt() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            ok = b"+OK\r\n" * data.count(b"SETINFO")  # its library's name and version
            writer.write(ok or (b"+PONG\r\n" if b"PING" in data else data))

    server, port = await serving(answer)
    transport = RedisTransport(f"redis://127.0.0.1:{port}/0")
    async with server, asyncio.timeout(LIMIT):
        sender = transport.sender(Entity("orders"))
        try:
            with pytest.raises(TransportError, match="does not answer as Redis does") as caught:
                await sender.send(Message(b"1"))
            (outcome,) = await sender.send_batch([Message(b"1")])
        finally:
            await transport.close()
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert caught.value.maybe_applied
    assert outcome is not None
    assert outcome.maybe_applied
