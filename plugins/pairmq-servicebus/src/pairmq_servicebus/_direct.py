"""Inner parts of azure-servicebus on the way of a healthy send, below its public sender, where a profile led.

The public sender copies a message three times, asks for spans and wraps the call in two layers of retries, which this
plugin has switched off. Reading the answer makes a task for each frame. All that together was a fifth of the client's
processor time for a send; `benchmarks/servicebus_send.py` shows it. The link, its credit, its encoder and its errors
stay the client's own, and what is more than a plain message goes through the public sender.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from azure.servicebus._common.tracing import is_tracing_enabled
from azure.servicebus._pyamqp._decode import decode_empty_frame, decode_frame
from azure.servicebus._pyamqp.message import Message as Outgoing
from azure.servicebus._pyamqp.message import Properties
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairmq_servicebus import _private
from pairmq_servicebus._codec import Parts


def is_plain(parts: Parts) -> bool:
    """Whether a message can go this way: no part of it is one that the public sender computes something of."""
    traced = is_tracing_enabled()  # type: ignore[no-untyped-call]  # the client's
    return not (parts.header or parts.annotations or traced)


def outgoing(parts: Parts) -> Outgoing:
    """A plain message as the client's encoder takes it."""
    properties = Properties(**parts.properties) if parts.properties else None
    application: dict[Any, Any] | None = parts.application or None
    return Outgoing(data=[parts.body], properties=properties, application_properties=application)


async def send(sender: ServiceBusSender, parts: Parts) -> None:
    """Send a plain message on a sender that is open, and wait for the answer; raises what the public sender raises."""
    handler: Any = _private.handler_of(sender)
    try:
        await handler.send_message_async(outgoing(parts), timeout=sender._config.try_timeout)
    except TimeoutError:
        failure: Exception = OperationTimeoutError(message="Send operation timed out")
    except Exception as error:
        failure = error
    else:
        return

    async def fail(**_: Any) -> NoReturn:
        raise failure

    # It makes its own error of it, and closes what can't be used any more.
    await sender._do_retryable_operation(fail)


def fix_reads(sender: ServiceBusSender) -> None:
    """Let the client wait for a frame without a task of its own for each: with `asyncio.wait_for` of Python 3.11 it
    costs two turns of the event loop, and may swallow a cancellation. From 3.12 on that is done as it is here.
    """
    transport: Any = getattr(getattr(_private.handler_of(sender), "_connection", None), "_transport", None)
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
