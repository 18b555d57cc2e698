"""The transport: a namespace, and the objects that use it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pairmq.model import Entity, Message, Source
from pairmq.transport import Admin, Capabilities, Receiver, Sender, SessionReceiver, Transport
from pairmq_servicebus import _codec, _errors
from pairmq_servicebus._admin import BusAdmin
from pairmq_servicebus._capabilities import CAPABILITIES
from pairmq_servicebus._client import ClientSettings, Namespace
from pairmq_servicebus._codec import measure
from pairmq_servicebus._receiver import BusReceiver, accept_session
from pairmq_servicebus._sender import BusSender, check_message
from pairmq_servicebus._url import NamespaceUrl, parse_servicebus_url

_OBJECTS = 1.4  # s for senders and receivers to close


class ServiceBusTransport(Transport):
    """A transport to a namespace of Azure Service Bus, its emulator, or the local server.

    The options of its URL are in the README; ``given`` is what no URL can hold.
    """

    def __init__(self, url: str | NamespaceUrl, given: ClientSettings | None = None) -> None:
        parsed = parse_servicebus_url(url) if isinstance(url, str) else url
        super().__init__(parsed.endpoint)
        self._namespace = Namespace(parsed, given or ClientSettings())
        self._admin = BusAdmin(self._namespace)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; the message size is the smallest that a link has reported so far."""
        limit = self._namespace.max_message_bytes
        return CAPABILITIES if limit is None else replace(CAPABILITIES, max_message_bytes=limit)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return BusSender(self._namespace, entity)

    def receiver(self, source: Source) -> Receiver:
        return BusReceiver(self._namespace, source)

    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        if self.ended:
            raise _errors.closed(f"accept a session of {source}")
        return await accept_session(self._namespace, source, session_id, wait)

    def measure(self, message: Message) -> int:
        """Count its bytes; a few more once a queue with one consumer at a time is known, where it may be sent to."""
        return measure(_codec.take_apart(message, single_consumer=self._namespace.single_consumers.any))

    def check_message(self, entity: Entity, message: Message) -> None:
        check_message(self._namespace, entity, message)

    async def _close(self) -> None:
        closing = [asyncio.ensure_future(made.close()) for made in list(self._namespace.open_objects)]
        closing.append(asyncio.ensure_future(self._admin.close()))
        self._namespace.closed = True
        await asyncio.wait(closing, timeout=_OBJECTS)
        await self._namespace.close()
