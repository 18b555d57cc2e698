"""What an application sees of aiormq's log: everything about its own connections, PairMQ's only on request."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiormq
import pytest

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing.servers import free_port
from pairmq_rabbitmq.testing import RabbitServer

QUEUE = Entity("orders")


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What an application that shows everything from INFO on would show."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.INFO and record.name.startswith(("aiormq", "aio_pika"))
    ]


def drivers(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of the driver and PairMQ; asyncio may log something that another test has left."""
    return [each for each in caplog.records if each.name.startswith(("aiormq", "aio_pika", "pairmq", "root"))]


async def refused_attempt() -> None:
    async with registry.transport(f"amqp://127.0.0.1:{free_port()}") as transport:
        with pytest.raises(TransportError):
            await transport.admin.check()


async def test_refused_connection_of_pairmq_is_raised_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await refused_attempt()
    assert drivers(caplog) == []


async def test_driver_records_are_logged_when_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await refused_attempt()
    levels = {record.levelname for record in caplog.records if "creating transport" in record.getMessage()}
    assert levels == {"DEBUG"}


async def test_application_connections_are_logged_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await asyncio.gather(refused_attempt(), _own_attempt(), refused_attempt())
    assert [record.levelname for record in drivers(caplog)] == ["ERROR"]


async def _own_attempt() -> None:
    with pytest.raises(ConnectionError):
        await aiormq.connect(f"amqp://127.0.0.1:{free_port()}")


@pytest.mark.real_server
async def test_an_outage_is_quiet_in_the_middle_of_sending_and_receiving(
    rabbit: RabbitServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
            await transport.admin.create(QUEUE)
            sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
            await sender.send(Message(b"", message_id="m"))
            await receiver.complete((await receiver.receive(1, 30))[0])
            waiting = asyncio.ensure_future(receiver.receive(1, 60))
            await asyncio.sleep(0)
            rabbit.go_down()
            with contextlib.suppress(TransportError):
                await waiting
            for _ in range(5):
                with pytest.raises(TransportError):
                    await sender.send(Message(b"", message_id="m"))
            rabbit.come_up()
            await sender.send(Message(b"", message_id="m"))
    assert loud(caplog) == []
