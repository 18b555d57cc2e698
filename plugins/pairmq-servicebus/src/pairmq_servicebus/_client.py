"""The client of one namespace: makes its senders and receivers, opens them within a time limit, and lets them go.

Every sender or receiver of azure-servicebus has a TCP connection of its own. Opening takes about half a second, and so
does closing in good order; a connection whose peer is gone is shut at once instead, in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import certifi
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue, TransportType
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from pairmq.model import ConfigurationError, Entity, EntityKind, Source
from pairmq.transport import Receiver, Sender, TlsOptions, keep_from_children, lookup, raise_failure, start_task
from pairmq_servicebus import _errors, _private
from pairmq_servicebus._entities import SingleConsumers
from pairmq_servicebus._url import DEFAULT_TLS_PORT, Identity, NamespaceUrl, SharedKey, SharedSignature, make_identity

LONGEST_LOCK = 300.0
"""Seconds, of all that the service allows."""

_NOTED = 3600.0  # s for which a date of the service counts: clocks drift
_FAREWELL = 1.2  # s for closing in good order
_LAST_MOMENT = 0.3  # s for the background work to end by itself,
_CUT_OFF = 0.1  # and when it was cut off
_LEFTOVERS = 5.0  # s for what the client still does with a connection that was shut
_SOCKET_SOON = 0.05  # s between looks for the socket of a link that is being opened
_READ_SLICE = 0.05  # s: how long a receiver's read lasts at most; a receive that has something ends after one more


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What an application that made its own client has set up, and no URL can hold.

    The credential gets tokens, in place of the URL's; it belongs to the application, and is not closed. The SSL context
    is used in place of the one made of ``tls-ca``; without effect on an emulator. ``arguments`` are the client's own.
    """

    credential: Any = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)


_PLAIN = ClientSettings()


class ServiceClock:
    """What the clock of the service shows at least, as its dates show: locks end by it, and this machine's may be
    minutes wrong."""

    def __init__(self) -> None:
        self._ahead = -math.inf  # of the event loop's, in seconds since 1970
        self._noted_at = -math.inf

    def note(self, date: datetime | None) -> None:
        """It has shown that: the service has dated something."""
        if date is None:
            return
        now = asyncio.get_running_loop().time()
        ahead = date.timestamp() - now
        if ahead > self._ahead or now - self._noted_at > _NOTED:
            self._ahead, self._noted_at = ahead, now

    def left(self, until: datetime) -> float:
        """Seconds until the end of a lock that the service has given: at most, but for a clock of this machine that is
        ahead."""
        self.note(until - timedelta(seconds=LONGEST_LOCK))
        return until.timestamp() - self.now()

    def now(self) -> float:
        """The later of what it shows at least, and this machine's clock, in seconds since 1970."""
        return max(self._ahead + asyncio.get_running_loop().time(), datetime.now(UTC).timestamp())

    def here(self, until: datetime) -> datetime:
        """That end by this machine's clock, where that is behind."""
        self.note(until - timedelta(seconds=LONGEST_LOCK))
        behind = self.now() - datetime.now(UTC).timestamp()
        return until if behind < 1.0 else until - timedelta(seconds=behind)


class Namespace:
    def __init__(self, url: NamespaceUrl, given: ClientSettings = _PLAIN) -> None:
        self.url = url
        self.given = given
        self.tls = None if url.emulator else given.ssl_context or _tls_context(url)
        self.identity = given.credential
        if self.identity is None and isinstance(url.credential, Identity):
            self.identity = make_identity(url.credential)
        self.single_consumers = SingleConsumers()
        self.clock = ServiceClock()
        self.open_objects: set[Sender | Receiver] = set()
        self.closed = False
        self.max_message_bytes: int | None = None
        """Of the smallest link that was opened so far; None before the first."""
        self.message_limits: dict[Entity, int] = {}
        """Bytes of a message, as the last link to an entity reported; a Premium queue may have its own."""
        self._client: ServiceBusClient | None = None
        self._sockets: WeakKeyDictionary[ServiceBusSender | ServiceBusReceiver, asyncio.WriteTransport]
        self._sockets = WeakKeyDictionary()
        self._background: set[asyncio.Task[Any]] = set()
        self._leaving: WeakSet[ServiceBusSender | ServiceBusReceiver] = WeakSet()

    def new_sender(self, entity: Entity) -> ServiceBusSender:
        if entity.kind is EntityKind.TOPIC:
            return self._made().get_topic_sender(entity.path, **_private.KEEP_ALIVE)
        return self._made().get_queue_sender(entity.path, **_private.KEEP_ALIVE)

    def new_receiver(self, source: Source, *, delete: bool = False, **options: Any) -> ServiceBusReceiver:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK
        options |= {"receive_mode": mode, "prefetch_count": 0, "socket_timeout": _READ_SLICE}
        if source.dead_letter:
            options["sub_queue"] = ServiceBusSubQueue.DEAD_LETTER
        if source.subscription is None:
            receiver = self._made().get_queue_receiver(source.entity.path, **options)
        else:
            receiver = self._made().get_subscription_receiver(source.entity.path, source.subscription, **options)
        return receiver

    async def open(self, made: ServiceBusSender | ServiceBusReceiver, doing: str, limit: float | None = None) -> None:
        """Open a sender or receiver within so many seconds, the URL's when left out; it is let go when this fails.

        Raises `TransportError`; certainly nothing was sent.
        """
        if self.closed:
            raise _errors.closed(doing)
        self._leaving.add(made)
        keep_from_children(made, _socket_of)
        # In a task of its own: cancelled, the client first closes what it began, however long that takes.
        opening = self.spawn(self._enter(made))
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + (limit or self.url.connect_timeout)
        try:
            while not opening.done() and (left := ends_at - loop.time()) > 0:
                await asyncio.wait((opening,), timeout=min(left, _SOCKET_SOON))
                self._remember_socket(made)
        except asyncio.CancelledError:
            self.discard(made, opening)
            raise
        if not opening.done():
            self.discard(made, opening)
            raise _errors.timed_out(doing)
        if opening.cancelled() or self.closed:
            # The namespace was closed meanwhile: no caller was cancelled.
            self.discard(made)
            raise _errors.closed(doing)
        error = opening.exception()
        if error is not None:
            self.discard(made)
            raise_failure(_errors.failure(error, doing))
        _private.fix_reads(made)
        _private.stay_closed(made)
        self._leaving.discard(made)

    async def _enter(self, made: ServiceBusSender | ServiceBusReceiver) -> None:
        given = self.given.arguments
        elsewhere = "custom_endpoint_address" in given or "http_proxy" in given
        if not self.url.websocket and not elsewhere and given.get("transport_type") in (None, TransportType.Amqp):
            # The client's own lookups of a name, while they hang, would hold up those of the other broker. One that
            # fails is repeated by the client, for its error.
            with contextlib.suppress(OSError, UnicodeError, RuntimeError):
                await lookup(self.url.host, self.url.port)
        await made.__aenter__()

    def discard(self, made: ServiceBusSender | ServiceBusReceiver, call: asyncio.Task[Any] | None = None) -> None:
        """Let a sender or receiver go at once, whatever its peer does."""
        self._leaving.add(made)
        self._shut(made)
        if call is not None:
            call.cancel()
        self.spawn(self._leave(made, call))

    async def farewell(self, made: ServiceBusSender | ServiceBusReceiver) -> None:
        """Close a sender or receiver in good order if it can be had soon, and shut it otherwise; never raises."""
        self._leaving.add(made)
        socket = self._sockets.get(made)
        closing = self.spawn(made.close())
        ends_at = asyncio.get_running_loop().time() + _FAREWELL
        while not closing.done() and asyncio.get_running_loop().time() < ends_at:
            await asyncio.wait((closing,), timeout=_SOCKET_SOON)
            if socket is not None and socket.is_closing():
                return  # the rest is the client's keep-alive task, which wakes up once a second to see that it is over
        if not closing.done():
            self.discard(made, closing)
        else:
            self._shut(made)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = start_task(work)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    async def close(self) -> None:
        self.closed = True
        if self._background:
            await asyncio.wait(self._background, timeout=_LAST_MOMENT)
        # What is left is cut off: the event loop may end next, and then its sockets would never be closed.
        left = list(self._background)
        for task in left:
            task.cancel()
        for made in list(self._leaving):
            self._shut(made)
        if left:
            await asyncio.wait(left, timeout=_CUT_OFF)
        for made in list(self._leaving):
            self._shut(made)
        # Sockets close in the next turn.
        await asyncio.sleep(0)
        if self.identity is not None and self.given.credential is None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(0.2):
                    await self.identity.close()

    async def _leave(self, made: ServiceBusSender | ServiceBusReceiver, call: asyncio.Task[Any] | None) -> None:
        """Let the client put its own things in order after the socket was shut."""
        with contextlib.suppress(Exception):
            if call is not None:
                await asyncio.wait((call,), timeout=_LEFTOVERS)
                self._shut(made)
            async with asyncio.timeout(_LEFTOVERS):
                await made.close()
            self._shut(made)

    def _remember_socket(self, made: ServiceBusSender | ServiceBusReceiver) -> None:
        socket = _private.socket_of(made)
        if socket is not None:
            self._sockets[made] = socket

    def _shut(self, made: ServiceBusSender | ServiceBusReceiver) -> None:
        """Shut the sockets that it has, and had when it was opened; of a closed one nothing comes."""
        for socket in (_private.socket_of(made), self._sockets.pop(made, None)):
            if socket is not None:
                with contextlib.suppress(Exception):
                    socket.abort()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # it was reported elsewhere, or concerns no caller

    def _made(self) -> ServiceBusClient:
        if self._client is None:
            self._client = _make_client(self)
        return self._client


def _socket_of(made: ServiceBusSender | ServiceBusReceiver) -> Any:
    transport = _private.socket_of(made)
    return None if transport is None or transport.is_closing() else transport.get_extra_info("socket")


def connection_string(url: NamespaceUrl, host: str) -> str:
    """Write the connection string of an emulator, or of the administration, for a key or signature."""
    credential = url.credential
    if isinstance(credential, SharedKey):
        login = f"SharedAccessKeyName={credential.name};SharedAccessKey={credential.key}"
    else:
        assert isinstance(credential, SharedSignature)  # noqa: S101 - an identity has no connection string
        login = f"SharedAccessSignature={credential.token}"
    return f"Endpoint=sb://{host};{login}" + (";UseDevelopmentEmulator=true" if url.emulator else "")


def _make_client(namespace: Namespace) -> ServiceBusClient:
    url = namespace.url
    options: dict[str, Any] = {
        # The next call connects anew, by the core's decision; a call is tried once. All time limits are ours: with
        # "try_timeout" the client runs a call in a task, whose error nothing retrieves where we cancel the call.
        "retry_total": 0,
        "user_agent": "pairmq-servicebus",
        **namespace.given.arguments,
    }
    shown = f"[{url.host}]" if ":" in url.host else url.host
    if url.emulator:
        # The client reads its authorities for every connection, plain ones too, and blocks the loop with it: 200 links
        # took five seconds. This one is never used to connect.
        options["ssl_context"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return ServiceBusClient.from_connection_string(connection_string(url, f"{shown}:{url.port}"), **options)
    kind = TransportType.AmqpOverWebsocket if url.websocket else TransportType.Amqp
    options = {"transport_type": kind, "ssl_context": namespace.tls, **options}
    if url.port != (443 if url.websocket else DEFAULT_TLS_PORT):
        options.setdefault("custom_endpoint_address", f"sb://{shown}:{url.port}")
    if namespace.identity is not None:
        return ServiceBusClient(shown, namespace.identity, **options)
    credential = url.credential
    if isinstance(credential, SharedKey):
        return ServiceBusClient(shown, AzureNamedKeyCredential(credential.name, credential.key), **options)
    assert isinstance(credential, SharedSignature)  # noqa: S101 - with an identity it does not come here
    return ServiceBusClient(shown, AzureSasCredential(credential.token), **options)


def _tls_context(url: NamespaceUrl) -> ssl.SSLContext:
    """Make what checks the service, once: the client would read its authorities anew for every connection."""
    if url.tls_ca is None:
        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())
        return context
    try:
        return TlsOptions(url.tls_ca).context(for_url=url.endpoint.url)
    except ConfigurationError as error:
        cause = error.__cause__
        raise ConfigurationError(
            f"{url.endpoint.url}: the file of tls-ca, {url.tls_ca}, can't be used: {cause}"
        ) from cause
