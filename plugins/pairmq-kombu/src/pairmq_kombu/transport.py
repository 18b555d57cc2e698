"""The transport behind ``pairmq://`` and ``pairmqs://``, for what publishes; what consumes uses Kombu's own."""

from __future__ import annotations

from typing import Any

from kombu.transport import pyamqp

from pairmq_kombu._channel import PairedChannel, PairedConnection
from pairmq_kombu._errors import QueueMissing
from pairmq_kombu._process import PairSettings, check_connection, pair_of_process, pair_settings


class Transport(pyamqp.Transport):
    """RabbitMQ through a pair: Kombu's transport for py-amqp, but for what it publishes.

    Args:
        client: the `kombu.Connection`.
        kwargs: of Kombu's transport.

    Raises:
        ConfigurationError: the URL or the settings can't make a pair.
    """

    recoverable_channel_errors = (*pyamqp.Transport.recoverable_channel_errors, QueueMissing)

    # No event loop waits for it, and no heartbeat is due: there may be no connection to the primary at all.
    implements = pyamqp.Transport.implements.extend(asynchronous=False, heartbeats=False)

    client: Any

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)  # type: ignore[no-untyped-call]
        check_connection(client)

    def establish_connection(self) -> PairedConnection:
        """Make a connection, without connecting to any broker. Raises `ConfigurationError`."""
        return PairedConnection(self.client, pair_of_process(self.settings()))

    def settings(self) -> PairSettings:
        """Read what makes the pair. Raises `ConfigurationError`."""
        return pair_settings(self.client, self.default_ssl_port if self.client.ssl else self.default_port)

    def create_channel(self, connection: PairedConnection) -> PairedChannel:
        """Make a channel, without connecting to any broker."""
        return connection.channel()

    def get_heartbeat_interval(self, connection: PairedConnection) -> float:
        return 0


class TLSTransport(Transport):
    """The same over TLS.

    Args:
        client: the `kombu.Connection`.
        kwargs: of Kombu's transport.
    """

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not client.ssl:
            client.ssl = True
