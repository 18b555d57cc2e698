"""The channel whose exchanges publish through a pair."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from aio_pika import Channel, RobustChannel
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, MethodNotImplemented

from pairmq_rabbitmq.paired._exchange import PairedExchange
from pairmq_rabbitmq.paired._publisher import Publisher


class PairedChannel(RobustChannel):
    """``aio_pika.RobustChannel`` that can be had while the primary is away: its exchanges publish all the same.

    It opens when the primary is back; what needs the primary (declaring, consuming) waits until then.
    """

    EXCHANGE_CLASS = PairedExchange

    @property
    def publisher(self) -> Publisher:
        """What its exchanges publish with; its connection's."""
        publisher: Publisher = cast(Any, self._connection).publisher
        return publisher

    async def initialize(self, timeout: float | None = None) -> None:
        """Open the channel, or let it be opened with the connection when the primary is back.

        Args:
            timeout: as aio-pika's.

        Raises:
            RuntimeError: it was opened before.
            AMQPError: the primary is there, and refuses it.
        """
        connected = cast(Any, self._connection).connected
        if connected.is_set():
            try:
                await super().initialize(timeout)
            except CONNECTION_EXCEPTIONS:
                if connected.is_set():
                    raise
            else:
                return
        if not hasattr(self, "default_exchange"):
            # aio-pika's plain channel makes the exchange here and does nothing else; the robust one asks the broker.
            await Channel._on_open(self)

    def transaction(self) -> NoReturn:
        """Refused: a transaction belongs to one channel of one broker.

        Raises:
            MethodNotImplemented: always.
        """
        raise MethodNotImplemented("a publish by a pair is in no transaction: each is confirmed by itself")
