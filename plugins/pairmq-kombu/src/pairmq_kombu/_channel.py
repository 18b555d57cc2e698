"""Connections and channels that publish through the pair, and leave all else to py-amqp's own.

A connection is there at once, and connects to the primary when something is asked of it; a channel opens one of
py-amqp's when that is needed.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from inspect import Signature, signature
from typing import Any

from amqp.exceptions import ChannelError, NotFound, RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base, pyamqp

from pairmq import ConfigurationError
from pairmq_kombu._errors import PublishRefused, QueueMissing, StillUnreachable, Unreachable
from pairmq_kombu._message import PERSISTENT, Exchange, NotCarried, routed
from pairmq_kombu._outbox import stored_through
from pairmq_kombu._process import PairOfProcess
from pairmq_kombu._reading import ACK, REJECT, REQUEUE, Consumer, Reading, Tag
from pairmq_kombu._remote import LINK_ERRORS, LinkTransport

_log = logging.getLogger(__name__)

_EVENT_PATIENCE = 1.5
"""Seconds of failed attempts after which nothing that may be lost is held up by an unreachable primary."""

_CONFIRM_TIMEOUT = 5.0  # seconds, where the caller gives none

_warned: set[tuple[str, str, str]] = set()

_PATIENCE = 4.0  # seconds, where the connection has no time limit of its own


class PairedChannel(base.StdChannel):
    """What Kombu's producers and consumers work on.

    `basic_publish` sends what is meant to outlive an outage through the pair. Declarations of durable queues and
    exchanges are postponed while the primary is unavailable. Everything else is done by a channel of the connection to
    the primary, and raises py-amqp's errors as it always did.
    """

    Message = pyamqp.Message

    def __init__(self, connection: PairedConnection, process: PairOfProcess) -> None:
        self.connection: PairedConnection | None = connection
        self.events: dict[str, set[Callable[..., object]]] = defaultdict(set)
        self._process = process
        self._real: Any = None
        self._confirming: Any = None
        self._missing: tuple[str, str] | None = None
        self._prefetch = 0
        self._consumes = False
        self._mailbox: dict[str, Any] | None = None

    # Publishing.

    def basic_publish(
        self,
        msg: Any,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **more: Any,
    ) -> object:
        """Publish one message, and return once a broker has confirmed it, unless it is transient; the receipt of the
        pair's.

        Through the pair a message that no queue takes is always an error; ``timeout`` is for everything, in seconds,
        and the pair's ``send_timeout`` when left out. For what does not go through the pair the primary has
        ``confirm_timeout`` to confirm, 5 s when left out.

        Raises `PublishRefused` when no broker has it, `PublishUnknown` when one may, `QueueMissing` when the primary
        has no such queue or exchange: Kombu declares them anew and publishes again. `Unreachable` and
        `StillUnreachable` are for what does not go through the pair.
        """
        stores = stored_through() is not None
        problem = "its exchange, or who waits for an answer, is at the primary only"
        try:
            found = routed(msg, exchange, routing_key, self._process.exchanges)
        except NotCarried as error:
            found, problem = None, str(error)
            if not stores:
                _warn_once(exchange, routing_key, problem)
        if stores and found is None and msg.properties.get("delivery_mode") == PERSISTENT:
            raise PublishRefused(f"a message for {_where(exchange, routing_key)} can't wait in an outbox: {problem}")
        try:
            if found is None:
                asked = {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory}
                asked |= {"immediate": immediate, "timeout": timeout, **more}
                sent = self._publish_on_link(msg, asked, confirm_timeout or timeout)
            else:
                self._make_up()
                sent = self._process.send(*found, timeout)
        except QueueMissing as error:
            # Kombu remembers what it has declared, and the broker has lost it: it is to be declared once more. So is
            # what was put off, as the primary responds.
            self._process.reached()
            if self.connection is not None:
                self.connection.client.declared_entities.clear()
            if self._missing == (exchange, routing_key):
                # That has not helped, and without a limit Kombu would go on without a pause.
                self._missing = None
                raise PublishRefused(str(error)) from error
            self._missing = (exchange, routing_key)
            raise
        self._missing = None
        return sent

    def _publish_on_link(self, msg: Any, arguments: dict[str, Any], confirm_timeout: float | None) -> object:
        """Publish without the pair; what is to outlive its broker returns only once that has confirmed it."""
        try:
            if msg.properties.get("delivery_mode") != PERSISTENT:
                return self._on_link(_EVENT_PATIENCE).basic_publish(msg, **arguments)
            channel = self._confirming = self._open_on_link(self._confirming)
            return channel.basic_publish_confirm(msg, confirm_timeout=confirm_timeout or _CONFIRM_TIMEOUT, **arguments)
        except LINK_ERRORS:
            self._lost(away=False)  # an answer that comes late must not be taken for that of the next publish
            raise
        except NotFound as error:
            raise QueueMissing(f"the primary has no such exchange: {error}") from error

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Any:
        """Put a message together, as Kombu's channel for py-amqp does."""
        prepare: Any = pyamqp.Channel.prepare_message
        return prepare(self, body, priority, content_type, content_encoding, headers, properties)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Translate Kombu's queue arguments to RabbitMQ's."""
        return base.to_rabbitmq_queue_arguments(arguments, **kwargs)

    def message_to_python(self, raw_message: Any) -> Any:
        """Make Kombu's message of what py-amqp has received."""
        make: Any = self.Message
        return make(raw_message, channel=self)

    # Declaring.

    def queue_declare(self, *given: Any, **named: Any) -> Any:
        """Declare a queue, now or, if it is durable and the primary is unavailable, once that is back."""
        asked = _by_name("queue_declare", given, named)
        queue = asked["queue"]
        lasting = bool(queue) and _outlasts(asked) and not asked["exclusive"]
        if lasting:
            self._process.queues.put(queue, True)
        return self._declare("queue_declare", asked, lasting, queue_declare_ok_t(queue, 0, 0))

    def exchange_declare(self, *given: Any, **named: Any) -> Any:
        """Declare an exchange, now or, if it is durable and the primary is unavailable, once that is back."""
        asked = _by_name("exchange_declare", given, named)
        lasting = _outlasts(asked)
        made = self._declare("exchange_declare", asked, lasting, None)
        if not asked["passive"]:
            self._process.exchanges.put(asked["exchange"], Exchange(asked["type"], lasting))
        return made

    def queue_bind(self, *given: Any, **named: Any) -> Any:
        """Bind a queue, now or, if its exchange is durable and the primary is unavailable, once that is back."""
        asked = _by_name("queue_bind", given, named)
        known = self._process.exchanges.get(asked["exchange"])
        return self._declare("queue_bind", asked, known is not None and known.durable, None)

    def _declare(self, method: str, arguments: dict[str, Any], lasting: bool, presumed: Any) -> Any:
        """Declare something; what is ``lasting`` can be declared later as well, and is ``presumed`` until then."""
        if not lasting:
            if self._process.continues and self._is_mailbox(method, arguments):
                return presumed
            reading = self._reading
            if reading is not None and arguments.get("queue", "an exchange") and not arguments.get("passive"):
                reading.remote.declare(method, arguments)
                return presumed
            return getattr(self._on_link(), method)(**arguments)
        if not self._process.is_away:
            try:
                return self._patiently(method, arguments)
            except LINK_ERRORS as error:
                _log.info("%s is put off: the primary is unavailable (%s)", method, type(error).__name__)
        if not self._process.postponed.add(method, arguments):
            return getattr(self._on_link(), method)(**arguments)  # as without a pair
        return presumed

    def _is_mailbox(self, method: str, arguments: dict[str, Any]) -> bool:
        """Let a worker hear remote control again after an outage, also where a greenlet has a connection for that.

        Celery starts that greenlet anew when the worker's connection is lost, which with continuity it never is.
        Returns whether the mailbox's exchange is taken care of: a worker may start in an outage.
        """
        name = arguments.get("queue") or arguments.get("exchange") or ""
        if self.connection is None or self._reading is not None:
            return False  # that worker has what it hears declared and consumed anew already
        if not name.endswith(".pidbox") or "reply." in name:
            return False
        if method == "exchange_declare":
            self._mailbox = arguments
            try:
                self._on_link().exchange_declare(**arguments)
            except LINK_ERRORS:
                self._lost(away=True)  # who publishes to it gets the error then
            return True
        if method == "queue_declare" and self._mailbox is not None and not self._consumes:
            self.connection.read().remote.declare("exchange_declare", self._mailbox)
        return False

    def _make_up(self) -> None:
        """Declare what was put off, once the primary is reachable."""
        if not self._process.postponed or self._process.is_away:
            return
        for key, (method, arguments) in self._process.postponed.all():
            try:
                self._patiently(method, arguments)
            except LINK_ERRORS:
                return
            except ChannelError as error:
                _log.warning("%s was put off, and the primary refuses it now: %s", method, error)
            self._process.postponed.made(key)

    def _patiently(self, method: str, arguments: dict[str, Any]) -> Any:
        """Call a method of the channel on the primary; once more on a new connection, if the first died unseen."""
        fresh = self._real is None
        try:
            return getattr(self._on_link(), method)(**arguments)
        except LINK_ERRORS as error:
            again = not (fresh or isinstance(error, TimeoutError | Unreachable))
            self._lost(away=not again)
            if not again:
                raise
        try:
            return getattr(self._on_link(), method)(**arguments)
        except LINK_ERRORS:
            self._lost(away=True)
            raise

    # Consuming.

    def basic_consume(self, *given: Any, **named: Any) -> Any:
        """Consume a queue: through the pair, if that has continuity and the queue outlives its broker.

        Raises `ConfigurationError`; and py-amqp's errors for a queue that only the primary has, but in a worker.
        """
        asked = _by_name("basic_consume", given, named)
        queue, consumer_tag, callback, no_ack = (
            asked[name] for name in ("queue", "consumer_tag", "callback", "no_ack")
        )
        reading = self._reading
        if callback is not None and consumer_tag and self._process.reads(queue) and self.connection is not None:
            if reading is None:
                if self._consumes:
                    raise ConfigurationError(
                        f"this channel consumes a queue that only the primary has: consume {queue} before that, or on "
                        "a connection of its own"
                    )
                reading = self.connection.read()
            reading.consume(Consumer(self, consumer_tag, queue, no_ack, callback, self._prefetch))
            return consumer_tag
        if callback is not None and consumer_tag and reading is not None:
            consumer = Consumer(self, consumer_tag, queue, no_ack, callback)
            reading.remote.consume(asked, lambda raw, settle: reading.of_remote(consumer, raw, settle))
            return consumer_tag
        channel = self._on_link()
        self._consumes = True
        if self._prefetch and self._process.continues:
            channel.basic_qos(0, self._prefetch, False)
        return channel.basic_consume(**asked)

    def basic_cancel(self, consumer_tag: str, nowait: bool = False, **more: Any) -> Any:
        """Stop consuming a queue; what it has received can still be settled."""
        if self._reading is None or not self._reading.cancel(consumer_tag):
            return self._on_link().basic_cancel(consumer_tag, nowait, **more)
        return consumer_tag

    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool, **more: Any) -> Any:
        """Limit the unsettled messages: through the pair, of each consumer."""
        if not self._process.continues:
            return self._on_link().basic_qos(prefetch_size, prefetch_count, a_global, **more)
        self._prefetch = prefetch_count
        if self._reading is not None:
            self._reading.limit(self, prefetch_count)
        return None

    def basic_ack(self, delivery_tag: int, multiple: bool = False, **more: Any) -> Any:
        if isinstance(delivery_tag, Tag):
            return self._settle(delivery_tag, ACK, multiple=multiple)
        return self._on_link().basic_ack(delivery_tag, multiple, **more)

    def basic_reject(self, delivery_tag: int, requeue: bool, **more: Any) -> Any:
        """Reject a message: it is redelivered at once, or goes to the dead-letter queue of PairMQ."""
        if isinstance(delivery_tag, Tag):
            return self._settle(delivery_tag, REQUEUE if requeue else REJECT)
        return self._on_link().basic_reject(delivery_tag, requeue, **more)

    def _settle(self, tag: Tag, action: str, *, multiple: bool = False) -> None:
        if self._reading is None:
            raise RecoverableConnectionError("the channel is closed: the message is redelivered")
        self._reading.settle(tag, action, self, multiple=multiple)

    @property
    def _reading(self) -> Reading | None:
        return None if self.connection is None else self.connection.reading

    # The channel for all else.

    def __getattr__(self, name: str) -> Any:
        # Looked up in the class first, so that to ask whether there is such a method connects to nothing.
        if name.startswith("_") or not hasattr(pyamqp.Channel, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._on_link(), name)

    def _on_link(self, patience: float | None = None) -> Any:
        """The channel on the connection to the primary, open."""
        self._real = self._open_on_link(self._real, patience)
        return self._real

    def _open_on_link(self, channel: Any, patience: float | None = None) -> Any:
        """Give this channel of the connection to the primary, or a new one where it is not open any more.

        Confirmed publishes have one of their own: an answer says only which channel it is for.
        """
        if self.connection is None:
            raise RecoverableConnectionError("the channel is closed")
        link = self.connection.link(patience)
        return channel if channel is not None and channel.connection is link else link.channel()

    def _lost(self, *, away: bool) -> None:
        self._real = self._confirming = None
        if self.connection is not None:
            self.connection.drop_link()
        if away:
            self._process.failed()

    @property
    def is_open(self) -> bool:
        """Whether it can be used: the primary need not be there."""
        return self.connection is not None

    def close(self, *arguments: Any, **kwargs: Any) -> None:
        """Close the channel; its messages that are not acknowledged go back to their queues."""
        if self._reading is not None:
            self._reading.close_channel(self)
        connection, channels = self.connection, (self._real, self._confirming)
        self._real = self._confirming = self.connection = None
        try:
            for channel in channels:
                if channel is not None and channel.connection is not None:
                    channel.close(*arguments, **kwargs)
        except LINK_ERRORS:
            if connection is not None:  # each further question would wait for its answer as long as this one
                connection.drop_link()

    def collect(self) -> None:
        """Forget it, without a word to the broker."""
        self._real = self._confirming = self.connection = None


def _by_name(method: str, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a method of py-amqp's channel, its defaults included."""
    bound = _signature(method).bind(*given, **named)
    bound.apply_defaults()
    return bound.arguments


@lru_cache
def _signature(method: str) -> Signature:
    its = signature(getattr(pyamqp.Channel, method))
    return its.replace(parameters=list(its.parameters.values())[1:])


def _outlasts(asked: dict[str, Any]) -> bool:
    """Whether what is declared outlives its broker."""
    return bool(asked["durable"]) and not (asked["passive"] or asked["auto_delete"])


def _warn_once(exchange: str, routing_key: str, problem: str) -> None:
    known = (exchange, routing_key if not exchange else "", problem)
    if known in _warned or len(_warned) >= 1000:
        return
    _warned.add(known)
    _log.warning(
        "a message for %s goes to the primary only, not through the pair: %s", _where(exchange, routing_key), problem
    )


def _where(exchange: str, routing_key: str) -> str:
    return f"the exchange {exchange!r}" if exchange else f"the queue {routing_key!r}"


class PairedConnection:
    """What Kombu takes for a connection to a broker.

    Publishing needs none to the primary: the pair has its own. So that an unavailable primary does not keep tasks from
    being sent, this one connects at the first thing that only the primary can do, such as remote control.
    """

    def __init__(self, client: Any, process: PairOfProcess) -> None:
        self.client = client
        self.process = process
        """The pair, and what all connections of the process to it share."""
        self._link: Any = None
        self._made_in = os.getpid()
        self._channels: list[PairedChannel] = []
        self._closed = False
        self.reading: Reading | None = None
        """What it consumes through the pair, or in a worker."""

    def read(self) -> Reading:
        """Begin to consume through the pair."""
        if self.reading is None:
            self.reading = Reading(self.process, self.client)
        return self.reading

    def register(self, hub: Any) -> None:
        """Let a worker's event loop call what is consumed."""
        reading = self.read()
        reading.register(hub)
        assert reading.remote is not None  # noqa: S101  # it begins to connect

    @property
    def connected(self) -> bool:
        """Whether it can be used: always, until it is closed."""
        return not self._closed

    def channel(self, channel_id: int | None = None) -> PairedChannel:
        channel = PairedChannel(self, self.process)
        self._channels = [known for known in self._channels if known.is_open]
        self._channels.append(channel)
        return channel

    def link(self, patience: float | None = None) -> Any:
        """Give py-amqp's connection to the primary.

        After ``patience`` seconds of failed attempts of this process, ``connect_timeout`` when left out, it raises
        `StillUnreachable`, and makes no new attempt until `DECLARE_INTERVAL` has passed; before, `Unreachable`: Kombu
        may try again.
        """
        if self._made_in != os.getpid():
            # The parent's: closing it here would close it there.
            self._link, self._made_in = None, os.getpid()
        if self._link is None or not self._link.connected:
            self.drop_link()
            if patience is None:
                patience = float(self.client.connect_timeout or _PATIENCE)
            if self.process.is_away and self.process.is_tired(patience):
                raise StillUnreachable(
                    "the primary is unreachable, as an attempt a moment ago has shown: try again later"
                )
            self.process.pace()
            hostname = self.client.hostname
            try:
                self._link = LinkTransport(self.client).establish_connection()  # type: ignore[no-untyped-call]
            except LINK_ERRORS as error:
                self.process.failed()
                # Kombu's own limits are about connecting, which never fails here: without one of ours a command whose
                # retries have no limit would never return.
                kind = StillUnreachable if self.process.is_tired(patience) else Unreachable
                raise kind(f"the primary is unreachable: {str(error) or type(error).__name__}") from error
            finally:
                # Kombu writes an address there for "localhost", which would be the name of another pair.
                self.client.hostname = hostname
            self.process.reached()
        return self._link

    def drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None and self._made_in == os.getpid():
            link.collect()

    def drain_events(self, timeout: float | None = None) -> Any:
        if self.reading is not None:
            return self.reading.drain(timeout)
        return self.link().drain_events(timeout=timeout)

    def heartbeat_tick(self, rate: int = 2) -> None:
        """Nothing is asked of the primary just to keep a connection."""

    def close(self, *arguments: Any, **kwargs: Any) -> None:
        """Close it; the pair stays open for the process."""
        link = self._end()
        if link is None:
            return
        if link.connected:
            with suppress(*LINK_ERRORS):
                link.close(*arguments, **kwargs)
        link.collect()

    def collect(self) -> None:
        """Close it without a word to the broker."""
        link = self._end()
        if link is not None:
            link.collect()

    def _end(self) -> Any:
        self._closed = True
        reading, self.reading = self.reading, None
        if reading is not None:
            reading.close()
        for channel in self._channels:
            channel.collect()
        self._channels = []
        link, self._link = self._link, None
        return link if self._made_in == os.getpid() else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.link(), name)
