"""The transport behind ``pairmq://`` and ``pairmqs://``, for what publishes, and for workers with continuity."""

from __future__ import annotations

from typing import Any

from kombu.transport import pyamqp

from pairmq import ConfigurationError
from pairmq_kombu._channel import PairedChannel, PairedConnection
from pairmq_kombu._errors import QueueMissing
from pairmq_kombu._process import PairSettings, check_connection, close_pairs, pair_of_process, pair_settings

__all__ = ["TLSTransport", "Transport", "close_pairs"]


class Transport(pyamqp.Transport):
    """RabbitMQ through a pair: Kombu's transport for py-amqp, but for what it publishes, and reads with continuity."""

    recoverable_channel_errors = (*pyamqp.Transport.recoverable_channel_errors, QueueMissing)

    # No heartbeat is due: there may be no connection to the primary at all.
    implements = pyamqp.Transport.implements.extend(asynchronous=False, heartbeats=False)

    client: Any

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)  # type: ignore[no-untyped-call]
        check_connection(client)
        if self._continues():
            # Celery asks the driver's name whether workers are to watch each other by events (gossip, mingle), and
            # whether tasks with an ETA wait in RabbitMQ's queues: neither outlives RabbitMQ.
            self.driver_type = "pairmq"
            self.implements = self.implements.extend(asynchronous=True)

    def _continues(self) -> bool:
        """Whether any queue has continuity; settings that can't be read are reported by what needs them."""
        try:
            return pair_of_process(self.settings()).continues
        except ConfigurationError:
            return False

    def establish_connection(self) -> PairedConnection:
        """Make a connection, without connecting to any broker. Raises `ConfigurationError`."""
        return PairedConnection(self.client, pair_of_process(self.settings()))

    def settings(self) -> PairSettings:
        """Read what makes the pair. Raises `ConfigurationError`."""
        return pair_settings(self.client, self.default_ssl_port if self.client.ssl else self.default_port)

    def create_channel(self, connection: PairedConnection) -> PairedChannel:
        """Make a channel, without connecting to any broker."""
        return connection.channel()

    def register_with_event_loop(self, connection: PairedConnection, loop: Any) -> None:
        """Let a worker's event loop call what is consumed."""
        connection.register(loop)

    def qos_semantics_matches_spec(self, connection: PairedConnection) -> bool:
        """Whether a limit of unsettled messages is each consumer's: what the pair reads is limited so."""
        if self.implements.asynchronous:
            return True
        return bool(super().qos_semantics_matches_spec(connection))  # type: ignore[no-untyped-call]

    def get_heartbeat_interval(self, connection: PairedConnection) -> float:
        return 0


class TLSTransport(Transport):
    """The same over TLS."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not client.ssl:
            client.ssl = True
