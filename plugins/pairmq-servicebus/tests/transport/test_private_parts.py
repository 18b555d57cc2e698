"""The inner parts of the client that the plugin touches: these tests fail where a newer client has moved one."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.transport import Transport
from pairmq_servicebus import _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._url import parse_servicebus_url
from pairmq_servicebus.testing import ServiceBusServer

PATIENCE = 30.0  # s


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (_private.typed(_private.LONG, 1), b"\x55\x01"),
        (_private.typed(_private.LONG, 2**40), b"\x81\x00\x00\x01\x00\x00\x00\x00\x00"),
        (_private.typed(_private.BINARY, b"\xff"), b"\xa0\x01\xff"),
        (_private.typed(_private.TIMESTAMP, 1), b"\x83\x00\x00\x00\x00\x00\x00\x00\x01"),
    ],
)
def test_typed_values_are_encoded_as_their_amqp_type(value: object, encoded: bytes) -> None:
    annotated = AmqpAnnotatedMessage(data_body=b"", application_properties={"k": value})
    wire = bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(annotated)))
    assert b"\xa1\x01k" + encoded in wire


def test_a_sender_has_no_keep_alive_of_its_own() -> None:
    namespace = Namespace(parse_servicebus_url("sb://k:v@localhost/?emulator=true"))
    sender = namespace.new_sender(Entity("q"))
    assert sender._config.keep_alive == 0
    assert sender._config.retry_total == 0
    assert _private.socket_of(sender) is None
    assert not _private.is_open(sender)


async def test_a_name_is_looked_up_before_the_client_looks_it_up_in_the_threads_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the client's own lookups hung, the other broker's could not begin."""
    free, opened = threading.Event(), []
    failed = socket.gaierror(socket.EAI_AGAIN, "try again")

    def resolve(*_: object, **__: object) -> list[object]:
        free.wait()
        raise failed

    async def enter(sender: ServiceBusSender) -> ServiceBusSender:
        opened.append(sender)
        raise failed

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(ServiceBusSender, "__aenter__", enter)
    namespace = Namespace(parse_servicebus_url("sb://k:v@queues.test/"))
    with pytest.raises(TransportError, match="in time"):
        await namespace.open(namespace.new_sender(Entity("orders")), "open", 0.05)
    assert opened == []
    free.set()
    with pytest.raises(TransportError, match="try again"):  # the client's error, as ever
        await namespace.open(namespace.new_sender(Entity("orders")), "open", 60)
    assert len(opened) == 1
    await namespace.close()


def test_the_names_are_there() -> None:
    for name in ("_further_pull_receive_timeout", "_receive_context", "_amqp_transport", "_running"):
        assert name in vars(_receiver()), name
    message = ServiceBusReceivedMessage.from_bytes(
        bytes(
            encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(AmqpAnnotatedMessage(data_body=b"x")))
        )
    )
    assert message._is_deferred_message is False
    assert hasattr(_receiver()._amqp_transport, "drain_and_release_messages_async")


def _receiver() -> ServiceBusReceiver:
    namespace = Namespace(parse_servicebus_url("sb://k:v@localhost/?emulator=true"))
    return namespace.new_receiver(Source(Entity("q")))


@pytest.mark.real_server
async def test_an_open_link_shows_its_state_its_limit_and_its_socket(
    server: ServiceBusServer, transport: Transport, queue: Entity
) -> None:
    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    sender = namespace.new_sender(queue)
    await namespace.open(sender, "open")
    assert isinstance(sender, ServiceBusSender)
    assert _private.is_open(sender)
    assert _private.max_message_bytes(sender) == 256 * 1024
    assert _private.socket_of(sender) is not None
    await _private.look(sender)
    authenticator = sender._handler._cbs_authenticator
    authenticator._token, authenticator._refresh_window = None, 10**9
    await _private.look(sender)  # a token that ends soon is renewed on an idle link, too
    assert authenticator._token is not None
    async with asyncio.timeout(PATIENCE):
        while not await sender._handler.auth_complete_async():
            pass
    server.drop_connections()
    async with asyncio.timeout(PATIENCE):
        while _private.is_open(sender):
            await _private.look(sender)
    namespace.discard(sender)
    await namespace.close()


@pytest.mark.real_server
async def test_a_link_that_was_closed_is_not_opened_anew_by_the_client(
    server: ServiceBusServer, transport: Transport, queue: Entity
) -> None:
    """Of several calls under way each did, and closed the others': none of a syphon's completions came to an end."""
    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    receiver = namespace.new_receiver(Source(queue))
    await namespace.open(receiver, "open")
    await receiver._close_handler()
    for _ in range(2):
        with pytest.raises(ServiceBusError, match="closed"):
            await receiver.receive_messages(1, 1.0)
    assert not _private.is_open(receiver)
    await namespace.close()


@pytest.mark.real_server
async def test_credit_is_granted_taken_back_and_what_came_is_counted(
    server: ServiceBusServer, transport: Transport, queue: Entity
) -> None:
    namespace = Namespace(parse_servicebus_url(f"{server.url}&connect-timeout=30"))
    receiver = namespace.new_receiver(Source(queue))
    await namespace.open(receiver, "open")
    _private.be_patient(receiver, 0.01)
    assert await receiver.receive_messages(5, 1.0) == []
    link = receiver._handler._link
    assert link.current_link_credit == 5
    await _private.take_back_credit(receiver)
    assert link.current_link_credit == 0
    assert _private.buffered(receiver) == 0
    _private.keep_arrivals(receiver)
    await receiver._amqp_transport.reset_link_credit_async(receiver._handler, 3)
    await transport.sender(queue).send(Message(b"x", message_id="m"))
    async with asyncio.timeout(PATIENCE):
        while not _private.buffered(receiver):
            await _private.look(receiver)
    assert _private.buffered(receiver) == 1
    await _private.give_back(receiver)
    assert _private.buffered(receiver) == 0
    [again] = await receiver.receive_messages(1, PATIENCE)
    assert not again.delivery_count
    await namespace.farewell(receiver)
    await namespace.close()
