"""The short way of a healthy send: the same errors, and the public sender for all that is not plain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition, MessageException
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from pairmq.model import Entity, Message, Source
from pairmq.transport import Transport
from pairmq_servicebus import _direct, _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._codec import encode, take_apart
from pairmq_servicebus._sender import open_send_link
from pairmq_servicebus._url import parse_servicebus_url
from pairmq_servicebus.testing import ServiceBusServer

Make = Callable[..., Message]


def test_what_the_public_sender_computes_something_of_is_left_to_it(message: Make) -> None:
    assert _direct.is_plain(take_apart(message(b"1", session_id="s", application_properties={"a": 1})))
    for fields in ({"time_to_live": 1.0}, {"priority": 1}, {"partition_key": "k"}):
        assert not _direct.is_plain(take_apart(message(b"1", **fields)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"message_id": None},
        {"session_id": "s", "subject": "new", "application_properties": {"a": 1}},
        {"partition_key": "k", "priority": 4},
    ],
    ids=str,
)
def test_a_batch_is_encoded_as_the_public_one(message: Make, fields: dict[str, Any]) -> None:
    parts = [take_apart(message(b"1" * size, **fields)) for size in (1, 300, 70_000)]
    public: Any = ServiceBusMessageBatch()
    for each in parts:
        public.add_message(encode(each))
    sender = Namespace(parse_servicebus_url("sb://k:v@localhost/?emulator=true")).new_sender(Entity("q"))
    ours = encode_payload(bytearray(), _direct.batch_of(sender, parts))
    assert ours == encode_payload(bytearray(), BatchMessage(*public._message))


def test_a_send_is_traced_when_the_client_enables_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_direct, "is_tracing_enabled", lambda: True)
    assert _direct.is_traced()


@pytest.mark.real_server
@pytest.mark.parametrize(
    "failure",
    [
        MessageException(ErrorCondition.InternalError, description="no"),
        MessageException(ErrorCondition.LinkMessageSizeExceeded, description="too large"),
        AMQPConnectionError(ErrorCondition.SocketError, description="gone"),
        TimeoutError("late"),
        OSError("gone"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_failure_is_raised_as_by_the_public_sender(
    server: ServiceBusServer, queue: Entity, message: Make, failure: Exception
) -> None:
    async def failing(*_: object, **__: object) -> None:
        raise failure

    def seen(error: BaseException) -> tuple[object, ...]:
        assert isinstance(error, ServiceBusError)
        return type(error), str(error), _private.condition_of(error), _private.was_answered(error)

    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    try:
        sender = namespace.new_sender(queue)
        await namespace.open(sender, "open")
        told = seen(_direct.as_reported(sender, failure))
        handler: Any = _private.handler_of(sender)
        handler.send_message_async = failing
        with pytest.raises(ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage(b"1"))
        assert told == seen(caught.value)
    finally:
        await namespace.close()


@pytest.mark.real_server
@pytest.mark.parametrize(
    "outcome",
    [{"released": []}, {"modified": [True, None, None]}, {"rejected": []}, None],
    ids=["released", "modified", "rejected", "unreadable"],
)
async def test_an_outcome_that_is_no_acceptance_fails_the_send(
    server: ServiceBusServer, queue: Entity, message: Make, outcome: object
) -> None:
    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    try:
        sender = namespace.new_sender(queue)
        await namespace.open(sender, "open")
        _private.fix_answers(sender)
        handler: Any = _private.handler_of(sender)
        told = handler._on_send_complete_async

        async def tell(delivery: object, reason: object, _: object) -> None:
            await told(delivery, reason, outcome)

        handler._on_send_complete_async = tell
        answers: list[Exception | None] = []
        await _direct.begin(sender, _direct.encoded(sender, take_apart(message(b"1"))), answers.append)
        async with asyncio.timeout(30):
            while not answers:
                await _direct.progress(sender)
        assert isinstance(answers[0], ServiceBusError)
    finally:
        await namespace.close()


@pytest.mark.real_server
async def test_a_frame_that_does_not_come_is_waited_for_no_longer_than_allowed(
    server: ServiceBusServer, queue: Entity
) -> None:
    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    try:
        sender = namespace.new_sender(queue)
        await namespace.open(sender, "open")
        handler: Any = _private.handler_of(sender)
        transport = handler._connection._transport
        async with asyncio.timeout(30):
            await sender.send_messages(
                ServiceBusMessage(b"1")
            )  # all that comes when a link opens came before its answer
            assert await transport.receive_frame(timeout=0.01) == (None, None)
            waiting = asyncio.create_task(transport.receive_frame(timeout=None))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await sender.send_messages(ServiceBusMessage(b"2"))  # the connection is none the worse for it
    finally:
        await namespace.close()


@pytest.mark.real_server
async def test_a_traced_send_goes_through_the_public_sender(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    send = ServiceBusSender.send_messages

    async def noted(sender: ServiceBusSender, whole: Any, **options: Any) -> None:
        sent.append(whole)
        await send(sender, whole, **options)

    monkeypatch.setattr(ServiceBusSender, "send_messages", noted)
    sender = transport.sender(queue)
    await sender.send(message(b"plain"))
    await sender.send(message(b"not plain", priority=1))
    assert not sent
    monkeypatch.setattr(_direct, "is_traced", lambda: True)
    await sender.send(message(b"traced"))
    assert await sender.send_batch([message(b"1"), message(b"2")]) == [None, None]
    assert len(sent) == 2


@pytest.mark.real_server
async def test_a_batch_is_written_before_the_next_one_is_encoded(
    server: ServiceBusServer, transport: Transport, queue: Entity, message: Make
) -> None:
    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    try:
        link = await open_send_link(namespace, queue, "send")
        await link.begin([take_apart(message(b"1")), take_apart(message(b"2"))], lambda _: None)
        async with asyncio.timeout(30):
            while (await transport.admin.counts(Source(queue))).pending != 2:
                await asyncio.sleep(0.02)
    finally:
        await namespace.close()
