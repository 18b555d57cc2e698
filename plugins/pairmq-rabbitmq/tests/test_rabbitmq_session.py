"""Closing a connection, whatever the driver does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pamqp.frame
import pytest
from aio_pika.tools import OneShotCallback
from aiormq.abc import AbstractConnection
from pamqp import commands

from pairmq_rabbitmq._driver import close_channel
from pairmq_rabbitmq._link import Link, _Underlay
from pairmq_rabbitmq._url import parse_rabbitmq_url


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


class Broker:
    """Answers the methods that open and close connections and channels, except those in ``silent``."""

    def __init__(self) -> None:
        self.url = ""
        self.silent: set[str] = set()
        self.tasks: set[asyncio.Task[None] | None] = set()
        self.writers: list[asyncio.StreamWriter] = []
        self.frames: list[str] = []
        self._answers = {
            "Connection.StartOk": commands.Connection.Tune(2047, 131_072, 60),
            "Connection.Open": commands.Connection.OpenOk(),
            "Connection.Close": commands.Connection.CloseOk(),
            "Channel.Open": commands.Channel.OpenOk(),
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readexactly(len(b"AMQP\0\0\x09\x01"))
            self.tasks.add(asyncio.current_task())
            hello = commands.Connection.Start(mechanisms="PLAIN", server_properties={"capabilities": {}})
            writer.write(pamqp.frame.marshal(hello, 0))
            while True:
                start = await reader.readexactly(7)
                rest = await reader.readexactly(int.from_bytes(start[3:]) + 1)
                _, channel, frame = pamqp.frame.unmarshal(start + rest)
                self.frames.append(frame.name)
                if frame.name in self._answers and frame.name not in self.silent:
                    writer.write(pamqp.frame.marshal(self._answers[frame.name], channel))

    def write(self, channel: int, frame: commands.Frame) -> None:
        self.writers[-1].write(pamqp.frame.marshal(frame, channel))

    async def saw(self, name: str) -> None:
        while name not in self.frames:
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.url = f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield broker
    server.close()
    broker.reset()


@pytest.mark.parametrize("end", ["answers", "is silent", "resets", "connects anew", "is connecting"])
async def test_closing_a_link_leaves_no_task_when_the_broker(broker: Broker, end: str) -> None:
    """A task left behind would be reported when it is collected, during another test."""
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    before = asyncio.all_tasks()
    session = await link.session()
    for _ in range(3):
        await session.open_channel(confirms=False)
    if end == "is silent":
        broker.silent.add("Connection.Close")
    elif end == "resets":
        broker.reset()
    elif end == "connects anew":
        session.end(TimeoutError("the broker did not answer in time"))
        await link.session()
    elif end == "is connecting":
        broker.silent.add("Connection.Open")
        link.retire(session, silent=False)
        connecting = asyncio.create_task(link.session())
        before.add(connecting)
        while len(broker.writers) < 2:
            await asyncio.sleep(0.01)
        connecting.add_done_callback(asyncio.Task.exception)
    await link.close(0.1)
    assert asyncio.all_tasks() - before - broker.tasks == set()


async def test_a_channel_is_not_closed_across_the_answer_to_its_question(broker: Broker) -> None:
    """If that is the broker's own close, it would take ours for the one of the next channel with that number."""
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    channel = await (await link.session()).open_channel(confirms=False)
    question = asyncio.create_task(channel.queue_declare("gone", passive=True))
    await broker.saw("Queue.Declare")
    closing = asyncio.create_task(close_channel(channel))
    await asyncio.sleep(0.05)
    broker.write(channel.number, commands.Channel.Close(404, "NOT_FOUND", 50, 10))
    await asyncio.wait((question, closing))
    question.exception()
    await link.close(1)
    assert "Channel.Close" not in broker.frames
    assert "Channel.CloseOk" in broker.frames


async def test_a_connection_that_a_call_gave_up_stays_for_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_rabbitmq._link._AFTERLIFE", 0.01)
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    session = await link.session()
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def call() -> str:
        return await answer

    others = asyncio.create_task(session.run(call()))
    await asyncio.sleep(0)
    link.retire(session, silent=False)
    await asyncio.sleep(0.1)
    answer.set_result("answered")
    assert await others == "answered"
    await asyncio.sleep(0.1)
    assert not session.usable
    await link.close(1)
