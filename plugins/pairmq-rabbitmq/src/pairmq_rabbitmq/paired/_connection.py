"""The connection, the channels and the exchanges of aio-pika that publish through a pair."""

from __future__ import annotations

import asyncio
from ssl import SSLContext
from typing import Any, Final, NoReturn, cast
from urllib.parse import quote, urlencode

from aio_pika import Channel, RobustExchange
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractMessage, PublishResultType
from aio_pika.connection import make_url
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelInvalidStateError,
    MethodNotImplemented,
    ProbableAuthenticationError,
    PublishError,
)
from aio_pika.message import IncomingMessage
from aiormq.exceptions import ConnectionNotAllowed
from pamqp.common import FieldTable
from yarl import URL

from pairmq import ConfigurationError, Pair, PairOptions
from pairmq.transport import start_task
from pairmq_rabbitmq.paired._consuming import ConsumingChannel, ConsumingConnection
from pairmq_rabbitmq.paired._publisher import OnReceipt, Publisher

_CONNECT_TIMEOUT: Final = 5.0  # s, unless the program sets one: an unresponsive broker must not delay its start
_TLS: Final = {"cafile": "ssl_ca_certs", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}
_TLS_ELSEWHERE: Final = ("auth", "cadata", "capath")
_REFUSALS: Final = (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed, RuntimeError)


class PairedExchange(RobustExchange):
    """``aio_pika.RobustExchange`` that publishes to the primary, or to the backlog while that is unavailable.

    Created by a `PairedChannel`, or by `paired_exchange`. Declaring, binding and deleting are aio-pika's own.
    """

    def __init__(
        self, channel: AbstractChannel, name: str, *args: Any, publisher: Publisher | None = None, **options: Any
    ) -> None:
        super().__init__(channel, name, *args, **options)
        self._publisher: Publisher = publisher or cast(Any, channel).publisher

    async def publish(  # type: ignore[override]  # aio-pika has overloads, which say no more than this
        self,
        message: AbstractMessage,
        routing_key: str,
        *,
        mandatory: bool = True,
        immediate: bool = False,
        timeout: float | None = None,
    ) -> PublishResultType | None:
        """Publish one message, and return once a broker has confirmed it.

        Args:
            message: aio-pika's.
            routing_key: as aio-pika's.
            mandatory: whether a message that no queue takes is returned; else it is dropped.
            immediate: RabbitMQ no longer supports it.
            timeout: seconds for everything, the pair's ``send_timeout`` when left out.

        Returns:
            A `Confirmation`, None on a channel without publisher confirms (it was confirmed all the same), or the
            returned message, after the channel's return callbacks.

        Raises:
            ValueError: a pair can't carry it, or the exchange is internal; nothing was sent.
            PublishError: no queue of the primary takes it, and the channel has ``on_return_raises``.
            NotDeliveredError: neither broker took it in time.
            PublishOutcomeUnknownError: perhaps accepted, perhaps not.
            AMQPChannelError: the primary refuses it; the subclasses say why.
            ChannelInvalidStateError: the channel, or the pair, is closed.
            MethodNotImplemented: ``immediate``.

        A cancelled publish's outcome is unknown.
        """
        if self.internal:
            raise ValueError(f"Can not publish to internal exchange: '{self.name}'!")
        if not self._publisher.carries(self.name, routing_key, message.reply_to):
            return await super().publish(
                message, routing_key, mandatory=mandatory, immediate=immediate, timeout=timeout
            )
        channel = cast(Any, self.channel)
        if getattr(channel, "_close_called", False):  # `is_closed` is also true of one that waits for the primary
            raise ChannelInvalidStateError(f"{channel!r} closed")
        try:
            confirmation = await self._publisher.publish(
                message,
                routing_key,
                exchange=self.name,
                exchange_type=self._type,
                mandatory=mandatory,
                immediate=immediate,
                timeout=timeout,
            )
        except PublishError as error:
            if channel.on_return_raises or error.message is None:
                raise
            channel.return_callbacks(IncomingMessage(error.message, no_ack=True))
            return error.message
        return confirmation if channel.publisher_confirms else None


def paired_exchange(exchange: AbstractExchange, pair: Pair, *, on_receipt: OnReceipt | None = None) -> PairedExchange:
    """Make an exchange that publishes through a pair from one of aio-pika's, which is not modified.

    Args:
        exchange: any, on any channel.
        pair: open, with this RabbitMQ as its primary.
        on_receipt: called with the receipt of each accepted message.
    """
    known = cast(Any, exchange)
    return PairedExchange(
        known.channel,
        known.name,
        known._type,
        auto_delete=known.auto_delete,
        durable=known.durable,
        internal=known.internal,
        passive=known.passive,
        arguments=known.arguments,
        publisher=Publisher(pair, on_receipt),
    )


class PairedChannel(ConsumingChannel):
    """``aio_pika.RobustChannel`` that can be created while the primary is unavailable: its exchanges publish anyway.

    It opens when the primary is available again; what needs the primary (declaring, consuming) waits until then.
    """

    EXCHANGE_CLASS = PairedExchange

    @property
    def publisher(self) -> Publisher:
        """The publisher of its exchanges; its connection's."""
        publisher: Publisher = cast(Any, self._connection).publisher
        return publisher

    async def initialize(self, timeout: float | None = None) -> None:
        """Open the channel, or let it be opened with the connection when the primary is available again.

        Raises what aio-pika's raises when the primary is reachable, and refuses it.
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
            # aio-pika's plain channel creates the exchange here and does nothing else; the robust one asks the broker.
            await Channel._on_open(self)

    def transaction(self) -> NoReturn:
        """Refused: a transaction belongs to one channel of one broker."""
        raise MethodNotImplemented("a publish by a pair is in no transaction: each is confirmed by itself")


class PairedConnection(ConsumingConnection):
    """``aio_pika.RobustConnection`` to the primary, with a pair beside it that publishes; see `connect_robust`."""

    CHANNEL_CLASS = PairedChannel

    def __init__(
        self,
        url: URL,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        publisher: Publisher,
        owned: bool,
        **options: Any,
    ) -> None:
        super().__init__(url, loop, pair=publisher.pair, **options)
        self.publisher = publisher
        self._owned = owned
        self._connecting: asyncio.Task[None] | None = None

    def connect_soon(self, timeout: float) -> None:
        """Connect in the background, with as many attempts as needed, each of at most so many seconds."""
        self._connecting = start_task(self.connect(timeout), name="paired connection")

    def channel(
        self,
        channel_number: int | None = None,
        publisher_confirms: bool = True,
        on_return_raises: bool = False,
    ) -> PairedChannel:
        """Create a channel, also while the primary is unavailable.

        Args:
            channel_number: as aio-pika's.
            publisher_confirms: without them ``publish`` returns None; the pair confirms all the same.
            on_return_raises: raise ``PublishError`` for a message that no queue takes.
        """
        if self.transport:
            made = super().channel(channel_number, publisher_confirms, on_return_raises)
        else:
            made = self.CHANNEL_CLASS(self, channel_number, publisher_confirms, on_return_raises)
            # Where aio-pika keeps the channels that it reopens; it creates none itself without a connection.
            self._RobustConnection__channels.add(made)  # type: ignore[attr-defined]
        assert isinstance(made, PairedChannel)  # noqa: S101  # for mypy
        return made

    async def close(self, exc: Any = asyncio.CancelledError) -> None:
        """Close the connection, and the pair if it was made with it. Idempotent."""
        try:
            if self._connecting is not None:
                self._connecting.cancel()
                await asyncio.wait((self._connecting,))
            await super().close(exc)
        finally:
            if self._owned:
                await self.pair.close()


async def connect_robust(
    url: str | URL | None = None,
    *,
    secondary: str | None = None,
    options: PairOptions | None = None,
    pair: Pair | None = None,
    on_receipt: OnReceipt | None = None,
    host: str = "localhost",
    port: int = 5672,
    login: str = "guest",
    password: str = "guest",  # noqa: S107  # aio-pika's and RabbitMQ's default
    virtualhost: str = "/",
    ssl: bool = False,
    ssl_options: Any = None,
    ssl_context: SSLContext | None = None,
    timeout: float | None = None,
    client_properties: FieldTable | None = None,
    **kwargs: Any,
) -> PairedConnection:
    """Connect as ``aio_pika.connect_robust``, with a second broker for what is published.

    Neither broker has to be reachable: without the primary the connection is opened in the background, and publishes
    are diverted meanwhile.

    Args:
        url: the primary's, as aio-pika's; also the pair's.
        secondary: the URL of any broker that PairMQ has a transport for.
        options: how the pair behaves; else from ``PAIRMQ_*`` variables, with `PairOptions`' defaults.
        pair: one of your own instead of ``secondary`` and ``options``; opened here, and yours to close.
        on_receipt: called with the receipt of each accepted message, before ``publish`` returns.
        host, port, login, password, virtualhost, ssl, ssl_options: as aio-pika's, without a URL.
        ssl_context: as aio-pika's; needs a ``pair`` of your own, which has its own connections.
        timeout: seconds of each attempt to connect; 5 when left out.
        client_properties: as aio-pika's.
        kwargs: as aio-pika's.

    Returns:
        The connection; its ``close`` closes the pair as well, unless it is yours.

    Raises:
        ConfigurationError: the URL, an option or the secondary can't work.
        TransportError: the secondary refuses to create the backlog queues.
        AMQPConnectionError: the primary refuses this user or virtual host.

    A cancelled call leaves nothing open.
    """
    where = make_url(
        url, host=host, port=port, login=login, password=password, virtualhost=virtualhost, ssl=ssl,
        ssl_options=ssl_options, **kwargs,
    )  # fmt: skip
    made = pair or Pair.connect(pair_url(where, ssl_context), secondary, options=options)
    publisher = Publisher(made, on_receipt)
    limit = _CONNECT_TIMEOUT if timeout is None else timeout

    def connection(*, fail_fast: bool) -> PairedConnection:
        settings = {**kwargs, "fail_fast": "1" if fail_fast else "0"}
        return PairedConnection(
            where,
            publisher=publisher,
            owned=pair is None,
            ssl_context=ssl_context,
            client_properties=client_properties,
            **settings,
        )

    made_connection: PairedConnection | None = None
    try:
        await made.open()
        made_connection = connection(fail_fast=True)
        try:
            await made_connection.connect(limit)
        except _REFUSALS:
            raise
        except CONNECTION_EXCEPTIONS:
            # aio-pika's closes itself when it is garbage; the pair is the next one's.
            made_connection._owned = False
            made_connection = connection(fail_fast=False)
            made_connection.connect_soon(limit)
    except BaseException:
        if made_connection is not None:
            await made_connection.close()
        elif pair is None:
            await made.close()
        raise
    return made_connection


def pair_url(url: URL, ssl_context: SSLContext | None = None) -> str:
    """Convert aio-pika's URL to the one of the pair's transport, with what its query says of TLS and the heartbeat.

    Raises `ConfigurationError` for what only aio-pika supports.
    """
    elsewhere = [name for name in _TLS_ELSEWHERE if name in url.query]
    if ssl_context is not None or elsewhere:
        what = ", ".join(["ssl_context"] * (ssl_context is not None) + elsewhere)
        raise ConfigurationError(
            f"{what} can't be applied to the pair's own connections: create the pair, and pass pair=Pair.connect(…)"
        )
    query = {name: url.query[old] for old, name in _TLS.items() if old in url.query}
    if url.query.get("no_verify_ssl", "0") not in ("0", ""):
        query["ssl_cert_reqs"] = "none"
    if url.scheme != "amqps":
        query = {}
    if url.query.get("heartbeat", "0").isdigit() and int(url.query.get("heartbeat", "0")) > 0:
        query["heartbeat"] = url.query["heartbeat"]
    # aio-pika writes the virtual host / as a second slash; elsewhere a slash of its name is %2F.
    vhost = "" if url.path in ("", "/", "//") else quote(url.path[1:], safe="")
    bare = str(url.with_query(None).with_fragment(None).with_path(f"/{vhost}", encoded=True))
    return f"{bare}?{urlencode(query)}" if query else bare
