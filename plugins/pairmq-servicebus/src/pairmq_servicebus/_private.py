"""The inner parts of azure-servicebus that this plugin touches, each with the reason; those of a send are in `_direct`.

Everything else goes through the client's public interface. The names used here are those of 7.15; the test
``test_private_parts.py`` fails where a newer client has moved one.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from datetime import datetime
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import (
    _DECODE_BY_CONSTRUCTOR,
    decode_empty_frame,
    decode_frame,
    decode_payload,
)
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message as Decoded
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender, ServiceBusSession
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from azure.servicebus.exceptions import ServiceBusError

_LOG = logging.getLogger(__name__)
_TYPE: Final = "TYPE"
_VALUE: Final = "VALUE"

LONG: Final = "LONG"
BINARY: Final = "BINARY"
TIMESTAMP: Final = "TIMESTAMP"

UNREADABLE: Final = "x-pairmq-unreadable"
"""The application property of a message that stands for one that the client can't decode; its value says why."""

_ACCEPTED, _REJECTED = "accepted", "rejected"
_UNDECODABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
_ANNOTATIONS = 0x72
_SEQUENCE_NUMBER = b"x-opt-sequence-number"
_ENQUEUED_TIME = b"x-opt-enqueued-time"
_BROWSE = b"com.microsoft:peek-message"
_CONDITION = b"errorCondition"
_OK, _NOTHING = 200, (202, 204)
_LATE_FRAMES = 32
_MOMENT = 0.001  # s

KEEP_ALIVE: Final[dict[str, Any]] = {"keep_alive": 0}
"""Arguments for a sender: no keep-alive task of the client's own. It sleeps in steps of a second, and closing waits
for it: a failed send would be reported up to a second late. `look` takes its place."""


def typed(type_: str, value: Any) -> dict[str, Any]:
    """Wrap a value of an AMQP type that the client's encoder would not choose by itself.

    It takes a plain int for an AMQP int of 32 bits, and bytes for a string.
    """
    return {_TYPE: type_, _VALUE: value}


def untyped(value: Any) -> tuple[str | None, Any]:
    """The type and the value of what `typed` made; None and the value itself of anything else."""
    if type(value) is dict:
        return value[_TYPE], value[_VALUE]
    return None, value


def condition_of(error: ServiceBusError) -> str | None:
    """The AMQP condition behind an error: the client shows it in its text only, in several forms."""
    condition = getattr(error, "_condition", None)
    inner = getattr(error, "inner_exception", None)
    if condition is None:
        condition = getattr(inner, "condition", None)
    if isinstance(condition, bytes):
        return bytes(condition).decode("ascii", "replace")
    return None if condition is None else str(condition)


def status_of(error: ServiceBusError) -> int | None:
    """The status that the management link, or the one for tokens, answered with."""
    candidates: tuple[Any, ...] = (
        getattr(error, "_status_code", None),
        getattr(error.inner_exception, "status_code", None),
    )
    for candidate in candidates:
        if isinstance(candidate, int | str) and str(candidate).isdecimal():
            return int(candidate)
    return None


def was_answered(error: BaseException) -> bool:
    """Whether a send's error is the service's answer to that very transfer, and no failure of link or connection."""
    inner = getattr(error, "inner_exception", None)
    return any(kind.__name__ == "MessageException" for kind in type(inner).__mro__)


def fix_reads(client: ServiceBusSender | ServiceBusReceiver) -> None:
    """Let the client wait for a frame without a task of its own for each, as it does from Python 3.12 on.

    `asyncio.wait_for` of 3.11 costs two turns of the event loop. Cancelled as a frame arrives or the connection breaks,
    it swallows the cancellation: the call goes on, and its error may never be retrieved.
    """
    transport: Any = getattr(getattr(handler_of(client), "_connection", None), "_transport", None)
    if transport is None or not hasattr(transport, "read"):
        return

    async def receive_frame(timeout: float | None = None, **options: Any) -> tuple[Any, Any]:
        try:
            async with asyncio.timeout(timeout):
                header, channel, payload = await transport.read(**options)
        except (TimeoutError, asyncio.IncompleteReadError):
            return None, None
        return channel, decode_frame(payload) if payload else decode_empty_frame(header)

    transport.receive_frame = receive_frame


def stay_closed(client: Any) -> None:
    """Keep the client from opening a link anew by itself: each of several calls under way does so, and closes the
    others'. A link of the lane's takes its place.
    """

    async def reopen(timeout: float | None = None) -> None:
        if not client._running:
            raise ServiceBusError("its link was closed", shutdown_handler=False)

    client._open = reopen


def fix_answers(sender: ServiceBusSender) -> None:
    """Let the client understand each answer to a transfer: of some it says nothing, and its send waits forever.

    It takes the third field of a rejection's error without looking whether it is there (a peer may leave it out: AMQP
    1.0, part 1.4), and knows no outcomes but *accepted* and *rejected*.
    """
    handler: Any = handler_of(sender)
    original = handler._on_send_complete_async

    async def completed(delivery: Any, reason: Any, state: Any) -> None:
        await original(delivery, reason, _whole(state))

    # The client looks its callback up on the handler for each transfer.
    handler._on_send_complete_async = completed


def _whole(state: Any) -> Any:
    """A disposition's state with all fields that the client reads; None, which it takes for unknown, for others."""
    if not isinstance(state, dict) or _ACCEPTED in state:
        return state
    fields = state.get(_REJECTED)
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], list):
        return None
    error = [*fields[0], None, None, None][:3]
    return {_REJECTED: [error, *fields[1:]]}


def fix_arrivals(receiver: ServiceBusReceiver) -> None:
    """Let the client survive messages that it can't decode: each is replaced by one that says so.

    Its decoder knows no char and no decimal of 32 or 64 bits, which other senders may well write, and accepts no
    map with a list as a key. It raises into whatever reads the link at that time, which breaks the link; and as the
    message was not settled, it is redelivered and breaks the next one.
    """
    link: Any = getattr(handler_of(receiver), "_link", None)
    arrived = link._incoming_transfer

    async def arrive(frame: Any) -> None:
        try:
            await arrived(frame)
        except _UNDECODABLE as error:
            # All that came before the decoding was done: only the message itself is missing.
            link._received_payload = bytearray()
            stand_in = _stand_in(error, b"")
            state = await link._process_incoming_message(link._first_frame, stand_in)
            if state and not frame[4]:  # no caller waits for it: it is released
                first, tag = link._first_frame[1], link._first_frame[2]
                await link._outgoing_disposition(
                    first=first, last=first, delivery_tag=tag, settled=True, state=state, batchable=None
                )

    # The client's session looks this up on the link for each transfer.
    link._incoming_transfer = arrive


def fix_peeks(receiver: ServiceBusReceiver) -> None:
    """The same for messages that are looked at: they come many in one answer, and one would spoil them all."""
    handler: Any = handler_of(receiver)
    asked = handler.mgmt_request_async

    async def ask(*arguments: Any, **options: Any) -> tuple[Any, Any, Any]:
        status, description, response = await asked(*arguments, **options)
        answer = response.value if isinstance(response.value, dict) else {}
        for entry in answer.get(b"messages", ()):
            entry[b"message"] = _decodable(entry[b"message"])
        return status, description, response

    handler.mgmt_request_async = ask


def _decodable(encoded: bytes) -> bytes:
    """An encoded message, or one that the client can decode in its place, of the same number in the queue."""
    try:
        decode_payload(memoryview(encoded))
    except _UNDECODABLE as error:
        return bytes(encode_payload(bytearray(), _stand_in(error, encoded, _annotations(encoded))))
    return encoded


def _annotations(encoded: bytes) -> dict[Any, Any]:
    """What the service says of a message that can't be decoded, as far as it stands before what can't be."""
    rest = memoryview(encoded)
    try:
        while rest:
            section = rest[2]
            rest, value = _DECODE_BY_CONSTRUCTOR[rest[3]](rest[4:])
            if section == _ANNOTATIONS:
                number = value.get(_SEQUENCE_NUMBER)
                return {_SEQUENCE_NUMBER: typed(LONG, number)} if isinstance(number, int) else {}
    except _UNDECODABLE:
        pass
    return {}


def _stand_in(error: BaseException, body: bytes, annotations: dict[Any, Any] | None = None) -> Decoded:
    """A message that says why another one can't be decoded."""
    problem = f"{type(error).__name__}: {error}"[:200]
    said: dict[str | bytes, Any] = {UNREADABLE.encode(): problem.encode()}
    return Decoded(data=[body], application_properties=said, message_annotations=annotations)


def as_received(
    message: AmqpAnnotatedMessage,
    *,
    delivery_count: int,
    sequence_number: int | None,
    enqueued_at: datetime | None,
) -> Decoded:
    """A message as if it had come from the service, with what that would have said of it."""
    header = message.header or AmqpMessageHeader()
    header.delivery_count = delivery_count
    message.header = header
    outgoing: Any = PyamqpTransport.to_outgoing_amqp_message(message)
    decoded: Any = decode_payload(memoryview(encode_payload(bytearray(), outgoing)))
    annotations = {**(decoded.message_annotations or {}), _SEQUENCE_NUMBER: sequence_number}
    if enqueued_at is not None:
        annotations[_ENQUEUED_TIME] = int(enqueued_at.timestamp() * 1000)
    received: Decoded = decoded._replace(message_annotations=annotations)
    return received


def max_message_bytes(sender: ServiceBusSender) -> int:
    """The largest message that the link takes; the public batch limit is another one for large messages."""
    return int(sender._max_message_size_on_link)


def credit_of(sender: ServiceBusSender) -> int:
    """How many transfers the service takes now: the client itself writes more than that."""
    link: Any = getattr(handler_of(sender), "_link", None)
    return 0 if link is None else int(link.current_link_credit)


def handler_of(client: ServiceBusSender | ServiceBusReceiver) -> object | None:
    """The connection and link behind a sender or receiver: another one after the client has opened it anew by itself.

    Delivery numbers begin anew with it, so that a message of the old one would settle another one of the new.
    """
    return getattr(client, "_handler", None)


def is_open(client: ServiceBusSender | ServiceBusReceiver) -> bool:
    """Whether nothing is known of its link's or connection's end."""
    handler: Any = handler_of(client)
    link = getattr(handler, "_link", None)
    connection = getattr(handler, "_connection", None)
    if not client._running or link is None or connection is None:
        return False
    reader = getattr(getattr(connection, "_transport", None), "reader", None)
    if isinstance(reader, asyncio.StreamReader) and (reader.exception() is not None or reader.at_eof()):
        # The event loop knows that the socket was reset or ended; the client finds out when it reads or writes next.
        return False
    return getattr(link.state, "name", "") == "ATTACHED" and not connection._error and not link._error


def unread(client: ServiceBusSender | ServiceBusReceiver) -> bool:
    """Whether something has arrived that the client has not read: that its link was detached, perhaps."""
    connection = getattr(handler_of(client), "_connection", None)
    reader = getattr(getattr(connection, "_transport", None), "reader", None)
    return bool(getattr(reader, "_buffer", b""))


async def look(client: ServiceBusSender | ServiceBusReceiver) -> None:
    """Take in what has arrived, without waiting for more; sends a heartbeat that is due, and renews an old token.

    An idle link is never read: that it was detached, or its connection lost, would be seen by the next call only,
    which then fails. Messages that come late, for credit that was taken back, are released by the client's callback.
    """
    handler: Any = handler_of(client)
    if handler is not None and handler._connection is not None:
        await handler._connection.listen(wait=_MOMENT, batch=_LATE_FRAMES)
        await handler.auth_complete_async()


def be_patient(receiver: ServiceBusReceiver, patience: float) -> None:
    """Say how long the next receive goes on after its first message, in seconds: 0.2 unless said, come what may."""
    receiver._further_pull_receive_timeout = patience


def buffered(receiver: ServiceBusReceiver) -> int:
    """How many messages a receive that was cut off has left behind; the next one hands them out, but waits for more."""
    handler: Any = handler_of(receiver)
    return int(handler._received_messages.qsize()) if handler is not None else 0


def keep_arrivals(receiver: ServiceBusReceiver) -> None:
    """Keep what arrives while no receive is under way, which else would be released, and come back out of order."""
    receiver._receive_context.set()


async def take_back_credit(receiver: ServiceBusReceiver) -> bool:
    """Ask for no more: a receive that ends early leaves its credit, on which the service would lock messages.

    False without any; the service answers, even when new credit comes close behind it.
    """
    handler: Any = handler_of(receiver)
    link = getattr(handler, "_link", None)
    if link is None or link.current_link_credit <= 0:
        return False
    await link.flow(link_credit=0, drain=True, echo=True)
    return True


def last_heard(receiver: ServiceBusReceiver) -> float | None:
    """When the last frame came, by the system's clock: another value after each."""
    connection: Any = getattr(handler_of(receiver), "_connection", None)
    heard: float | None = getattr(connection, "_last_frame_received_time", None)
    return heard


async def give_back(receiver: ServiceBusReceiver) -> None:
    """Release what was fetched and not handed out, without counting it as a delivery, and what comes from now on."""
    handler = handler_of(receiver)
    if handler is not None and receiver._receive_context.is_set():
        receiver._receive_context.clear()
        transport: Any = receiver._amqp_transport
        await transport.drain_and_release_messages_async(handler)


class _LastingMessage(ServiceBusReceivedMessage):
    _lock_expired = False


class _LastingSession(ServiceBusSession):
    _lock_expired = False


def let_the_service_end_locks(locked: ServiceBusReceivedMessage | ServiceBusSession) -> None:
    """Keep the client from comparing the end of a lock, an instant of the service, with the clock of this machine.

    Where that is ahead by as long as a lock lasts, the client settles nothing.
    """
    locked.__class__ = _LastingSession if isinstance(locked, ServiceBusSession) else _LastingMessage


def session_is_over(receiver: ServiceBusReceiver) -> bool:
    """Whether the lock of a receiver's session was lost: its link may not know yet."""
    session: Any = receiver.session
    return bool(session is not None and session._lock_lost)


async def browse(sender: ServiceBusSender, first: int, most: int) -> list[ServiceBusReceivedMessage]:
    """Look at messages from a sequence number on, over the management link of a *sender*; in order, with stand-ins for
    those that the client can't decode.

    A receiver can't: the client opens its link first, and at a queue that requires sessions that means to lock one,
    while any client may browse such a queue (Service Bus documentation: "Message sessions").
    """

    def read(status: int, answer: Any, description: Any, amqp_transport: Any) -> list[ServiceBusReceivedMessage]:
        if status == _OK:
            entries = (answer.value or {}).get(b"messages", ())
            return [_received(_decodable(entry[b"message"])) for entry in entries]
        if status in _NOTHING:
            return []
        condition = answer.application_properties.get(_CONDITION)
        raise amqp_transport.handle_amqp_mgmt_error(_LOG, "Browsing failed.", condition, description, status)

    asked = {"from-sequence-number": typed(LONG, first), "message-count": most}
    found: list[ServiceBusReceivedMessage] = await sender._mgmt_request_response_with_retry(
        _BROWSE, asked, read, keep_alive_associated_link=False
    )
    return found


def _received(encoded: bytes) -> ServiceBusReceivedMessage:
    decoded: Any = decode_payload(memoryview(encoded))
    return ServiceBusReceivedMessage(decoded, receiver=None, is_peeked_message=True)


def settle_by_token(message: ServiceBusReceivedMessage) -> None:
    """Make the client settle a message by its lock token, over the management link.

    The message came over a link that is gone; by its delivery number it would settle another one.
    """
    message._is_deferred_message = True


def socket_of(client: ServiceBusSender | ServiceBusReceiver) -> asyncio.WriteTransport | None:
    """The socket, to be closed at once: a close handshake waits for the peer, forever if that has vanished silently.

    The client also forgets to close it after some failures. None while it is not open, or through a web socket.
    """
    connection = getattr(handler_of(client), "_connection", None)
    writer = getattr(getattr(connection, "_transport", None), "writer", None)
    return writer.transport if isinstance(writer, asyncio.StreamWriter) else None
