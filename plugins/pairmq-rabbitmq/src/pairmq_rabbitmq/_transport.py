"""The transport: its settings and connections, and the objects that use them."""

from __future__ import annotations

import asyncio

from pairmq.model import Entity, Message, Source
from pairmq.transport import Admin, Receiver, Sender, Transport
from pairmq_rabbitmq import _codec
from pairmq_rabbitmq._admin import RabbitAdmin
from pairmq_rabbitmq._capabilities import CAPABILITIES
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._receiving import RabbitReceiver
from pairmq_rabbitmq._schedule import Schedule
from pairmq_rabbitmq._sender import RabbitSender, check_message
from pairmq_rabbitmq._url import parse_rabbitmq_url

_RECEIVERS = 1.2  # s
_CLOSE = 0.5


class RabbitTransport(Transport):
    """A transport to a RabbitMQ server, 3.8 or newer; the options of its URL are in the README."""

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        parsed = parse_rabbitmq_url(url)
        super().__init__(parsed.endpoint)
        tls = None if parsed.tls is None else parsed.tls.context(for_url=parsed.endpoint.url)
        self._context = Context(parsed, self.scope, tls)
        self._schedule = Schedule(self._context)
        self._admin = RabbitAdmin(self._context)

    @property
    def node(self) -> str | None:
        return self._context.node

    @property
    def admin(self) -> Admin:
        return self._admin

    async def make_ready(self, *, sends: bool = False, receives: bool = False) -> None:
        """Open the connections that are for these; each takes some five round trips."""
        context = self._context
        await asyncio.gather(
            *([context.connect(context.publishing)] if sends else []),
            *([context.connect(context.consuming)] if receives else []),
        )

    def sender(self, entity: Entity) -> Sender:
        return RabbitSender(self._context, self._schedule, entity)

    def receiver(self, source: Source) -> Receiver:
        return RabbitReceiver(self._context, source)

    def measure(self, message: Message) -> int:
        return _codec.size(message)

    def check_message(self, entity: Entity, message: Message) -> None:
        check_message(self._context, entity, message)

    async def _close(self) -> None:
        closing = [asyncio.ensure_future(receiver.close()) for receiver in list(self._context.receivers)]
        if closing:
            await asyncio.wait(closing, timeout=_RECEIVERS)
        await self._context.close(_CLOSE)
