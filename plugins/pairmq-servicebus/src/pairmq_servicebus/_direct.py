"""Inner parts of azure-servicebus on the way of a healthy send, below its public sender, where a profile led.

The public sender has one transfer under way at a time: to a distant service, one for each round trip. It copies a
message three times, asks for spans and wraps the call in two layers of retries, which this plugin has switched off.
All that together was a fifth of the client's processor time for a send; `benchmarks/servicebus_send.py` shows it. The
public batch encodes each message twice, once to know its size, which the plugin knows. The link, its credit, its
encoder and its errors stay the client's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus._common.tracing import is_tracing_enabled
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.constants import MessageDeliveryState
from azure.servicebus._pyamqp.error import ErrorCondition, MessageException
from azure.servicebus._pyamqp.message import BatchMessage, Properties, _MessageDelivery
from azure.servicebus._pyamqp.message import Message as Outgoing
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairmq_servicebus import _codec, _private
from pairmq_servicebus._codec import Parts
from pairmq_servicebus._values import PARTITION_KEY

_LOG = logging.getLogger(__name__)
_MOMENT: Final = 0.05  # s: what is sent meanwhile waits for it


def is_traced() -> bool:
    """Whether spans are made of the client's sends: by the public sender, so that they go through it."""
    return bool(is_tracing_enabled())  # type: ignore[no-untyped-call]  # the client's


def is_plain(parts: Parts) -> bool:
    """Whether no part of a message is one that the public sender computes something of."""
    return not (parts.header or parts.annotations)


def encoded(sender: ServiceBusSender, parts: Parts) -> Outgoing:
    """A message as the client's encoder takes it."""
    if is_plain(parts):
        return outgoing(parts)
    made: Any = transform_outbound_messages(
        _codec.encode(parts), ServiceBusMessage, sender._amqp_transport.to_outgoing_amqp_message
    )
    whole: Outgoing = made._message
    return whole


def batch_of(sender: ServiceBusSender, messages: Sequence[Parts]) -> BatchMessage:
    """Messages as a batch that the client's encoder takes; on its envelope are the first one's ids."""
    first = messages[0]
    ids = {name: first.properties[name] for name in ("message_id", "group_id") if name in first.properties}
    key = first.annotations.get(PARTITION_KEY)
    return BatchMessage(
        message_annotations=None if key is None else {PARTITION_KEY: key},
        properties=Properties(**ids) if ids else None,
        data=[encode_payload(bytearray(), encoded(sender, parts)) for parts in messages],
    )


def outgoing(parts: Parts) -> Outgoing:
    """A plain message as the client's encoder takes it."""
    properties = Properties(**parts.properties) if parts.properties else None
    application: dict[Any, Any] | None = parts.application or None
    return Outgoing(data=[parts.body], properties=properties, application_properties=application)


async def begin(
    sender: ServiceBusSender, message: Outgoing | BatchMessage, answered: Callable[[Exception | None], None]
) -> None:
    """Give a message or a batch to an open sender; `write` or `progress` writes it, and ``answered`` gets None, or what
    the public sender raises."""
    handler: Any = _private.handler_of(sender)
    delivery: Any = _MessageDelivery(message, MessageDeliveryState.WaitingForSendAck)  # type: ignore[no-untyped-call]

    async def settled(reason: Any, state: Any) -> None:
        try:
            await handler._on_send_complete_async(delivery, reason, state)
            failed = delivery.state is not MessageDeliveryState.Ok
            error = delivery.error or MessageException(ErrorCondition.UnknownError, description="Send failed.")
        except Exception as unexpected:
            failed, error = True, unexpected
        answered(as_reported(sender, error) if failed else None)

    try:
        await handler._link.send_transfer(message, on_send_complete=settled, send_async=True)
    except Exception as error:
        raise as_reported(sender, error) from error


async def write(sender: ServiceBusSender) -> None:
    """Write what was begun; raises what the public sender raises."""
    handler: Any = _private.handler_of(sender)
    try:
        await handler._link.update_pending_deliveries()
    except Exception as error:
        raise as_reported(sender, error) from error


async def progress(sender: ServiceBusSender) -> None:
    """Write what was begun, and wait a moment for a frame; raises what the public sender raises."""
    handler: Any = _private.handler_of(sender)
    try:
        if not handler._shutdown and await handler.client_ready_async():
            await handler._link.update_pending_deliveries()
            await handler._connection.listen(wait=_MOMENT)
    except Exception as error:
        raise as_reported(sender, error) from error


def as_reported(sender: ServiceBusSender, error: Exception) -> Exception:
    """Make the error that the public sender raises of an inner one; it also closes the link, after any refusal."""
    if isinstance(error, TimeoutError):
        return OperationTimeoutError(message="Send operation timed out")
    transport: Any = sender._amqp_transport
    made: Exception = transport.create_servicebus_exception(
        _LOG, error, custom_endpoint_address=sender._config.custom_endpoint_address
    )
    return made
