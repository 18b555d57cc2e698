"""The pair of a Kombu connection: its settings, and what all connections of a process to it share.

These are the pair itself, its senders, and what is known of the primary.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final
from urllib.parse import quote, urlencode

from pairmq import ConfigurationError, Entity, Message, PairClosed, PairFaulted, PairMQError, PairOptions, Receipt
from pairmq.sync import Pair
from pairmq_kombu._bounded import MOST_EXCHANGES, MOST_HANDLED, Postponed, Recent, Senders
from pairmq_kombu._errors import Unreachable, kombu_error
from pairmq_kombu._message import Exchange
from pairmq_kombu._outbox import stored_through

_log = logging.getLogger(__name__)

TABLE: Final = "pairmq"
"""The entry of ``broker_transport_options`` (``transport_options`` in Kombu) that holds a pair's settings."""

_SOURCES = ("primary", "secondary", "config", "journal")
_KNOWN = (*_SOURCES, *(entry.name for entry in fields(PairOptions)))
_TLS_FILES = {"ca_certs": "ssl_ca_certs", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}
_LOGINS = (None, "PLAIN", "AMQPLAIN")

RETRY_INTERVAL: Final = 0.5
"""Seconds between two attempts of this process to connect to a primary that did not let it."""

DECLARE_INTERVAL: Final = 5.0
"""Seconds for which declarations are put off without an attempt, after one to reach the primary has failed."""

_NEW_SERIES = 30.0  # seconds without an attempt, after which the next failure is the first one again
_LEAST_TIMEOUT = 0.1  # seconds, for the first send of a pair whose opening has used up the time


@dataclass(frozen=True, slots=True)
class PairSettings:
    """What makes a pair, as arguments of `pairmq.sync.Pair.connect`; two connections with equal settings share one."""

    arguments: tuple[tuple[str, Any], ...] = field(repr=False)

    def connect(self, **more: Any) -> Pair:
        """Make the pair, and open nothing. Raises `ConfigurationError`."""
        return Pair.connect(**{**dict(self.arguments), **more})


def pair_settings(client: Any, default_port: int) -> PairSettings:
    """Read the settings of a `kombu.Connection`. Raises `ConfigurationError`."""
    table = (client.transport_options or {}).get(TABLE) or {}
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"the transport option {TABLE!r} must hold a table of the pair's settings")
    unknown = sorted(str(name) for name in table if name not in _KNOWN)
    if unknown:
        raise ConfigurationError(
            f"unknown {', '.join(unknown)} in the transport option {TABLE!r}: known are {', '.join(_KNOWN)}"
        )
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    primary = arguments.get("primary") or _primary(client, default_port)
    if not isinstance(primary, str) or not primary.lower().startswith(("amqp://", "amqps://")):
        raise ConfigurationError("the primary of a pair for Kombu must be RabbitMQ: amqp:// or amqps://")
    arguments["primary"] = primary
    return PairSettings(tuple(sorted(arguments.items())))


def check_connection(client: Any) -> None:
    """Refuse a connection that can't be a pair's, with what to write instead."""
    if "://" in (client.hostname or ""):
        raise ConfigurationError(
            "write the primary's URL with pairmq:// in the place of amqp://, or with pairmqs:// in that of amqps://; "
            "other brokers than RabbitMQ can be the secondary, not the primary"
        )
    if len(client.alt or ()) > 1:
        raise ConfigurationError(
            "a pairmq:// URL has no alternates: name the second broker as 'secondary' in the transport option "
            f"{TABLE!r}, or in PAIRMQ_SECONDARY"
        )


def _primary(client: Any, default_port: int) -> str:
    if callable(client.password) or client.login_method not in _LOGINS:
        raise ConfigurationError(
            "a pair logs in with user name and password: name the primary as 'primary' in the transport option "
            f"{TABLE!r}, with a login of its own"
        )
    scheme, options = ("amqps", _tls_options(client.ssl)) if client.ssl else ("amqp", {})
    host = client.hostname or "127.0.0.1"
    login = f"{quote(client.userid or 'guest', safe='')}:{quote(client.password or 'guest', safe='')}"
    address = f"{f'[{host}]' if ':' in host else host}:{client.port or default_port}"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{login}@{address}/{quote(client.virtual_host or '/', safe='')}{query}"


def _tls_options(given: Any) -> dict[str, str]:
    """Certificate and host name are checked unless that is switched off; py-amqp by ``ssl=True`` checks the former."""
    if not isinstance(given, Mapping):
        return {}
    options = {}
    for name, value in given.items():
        if name in _TLS_FILES:
            options[_TLS_FILES[name]] = str(value)
        elif name == "cert_reqs":
            options["ssl_cert_reqs"] = "none" if value == ssl.CERT_NONE else "required"
        elif name != "server_hostname" or value is not None:
            raise ConfigurationError(
                f"a pair has no equal of the TLS setting {name!r}: name the primary as 'primary' in the transport "
                f"option {TABLE!r}, with ssl_ca_certs and its like in the URL"
            )
    return options


class PairOfProcess:
    """A pair that is opened by the first publish, and what its connections have in common.

    Safe to share between threads, and over a fork, as `pairmq.sync.Pair` is.
    """

    def __init__(self, settings: PairSettings) -> None:
        self._settings = settings
        self._pair = settings.connect()
        self._senders = self._senders_of(self._pair)
        self._failed_at: float | None = None
        self._failing_since: float | None = None
        self._warned = False
        self.known_down = False
        """Whether a thread that keeps a connection to the primary has lost it: other attempts would only take time."""
        self.exchanges: Recent[str, Exchange] = Recent(MOST_EXCHANGES)
        """What this process has declared."""
        self.queues: Recent[str, bool] = Recent(MOST_EXCHANGES)
        """Queues that outlive their broker, of those that this process has declared."""
        self.handled: Recent[str, bool] = Recent(MOST_HANDLED)
        """Ids of messages that were acknowledged here: a broker that was lost may have forgotten that."""
        self.postponed = Postponed()
        """Declarations for when the primary is back."""

    @property
    def pair(self) -> Pair:
        return self._pair

    @property
    def continues(self) -> bool:
        """Whether any queue is read through an outage: it has continuity (SPEC 11)."""
        return bool(self._pair.options.continuity)

    def reads(self, queue: str) -> bool:
        """Whether a queue is read through the pair: any that outlives its broker, once one has continuity."""
        options = self._pair.options
        if not options.continuity or not (options.continues(queue) or self.queues.get(queue)):
            return False
        if not options.continues(queue) and not self._warned:
            self._warned = True
            _log.warning("queue %s has no continuity: in an outage of the primary its tasks wait for that", queue)
        return True

    def opened(self) -> Pair:
        """Give the pair, open; one that has ended is replaced. Raises `ConfigurationError`, `Unreachable`."""
        pair = self._pair
        try:
            try:
                return pair.open()
            except (PairClosed, PairFaulted):
                self._renew(pair)
                return self._pair.open()
        except ConfigurationError:
            raise
        except PairMQError as error:
            raise Unreachable(str(error)) from error

    def send(self, entity: Entity, message: Message, timeout: float | None) -> Receipt:
        """Send through the pair, which the first send opens.

        That counts toward the timeout, the pair's ``send_timeout`` when left out, and may take its ``attempt_timeout``,
        however little is left.
        """
        pair, senders = self._pair, self._senders
        begun = time.monotonic()
        try:
            pair.open()
            if (connection := stored_through()) is not None:
                return pair.outbox(entity.path, kind=entity.kind).send(message, connection=connection)
            whole = pair.options.send_timeout if timeout is None else timeout
            with senders.using(entity) as sender:
                return sender.send(message, timeout=max(_LEAST_TIMEOUT, whole - (time.monotonic() - begun)))
        except ConfigurationError:
            raise
        except PairMQError as error:
            if isinstance(error, PairClosed | PairFaulted):
                self._renew(pair)
            raise kombu_error(error) from error

    def close(self) -> None:
        """End the pair; the next send makes a new one."""
        pair = self._pair
        pair.close()
        self._renew(pair)

    def _renew(self, ended: Pair) -> None:
        # A pair that has ended stays so; the next publish may find brokers that work.
        with _lock:
            if self._pair is ended:
                self._pair = self._settings.connect()
                self._senders = self._senders_of(self._pair)

    @staticmethod
    def _senders_of(pair: Pair) -> Senders:
        return Senders(lambda entity: pair.sender(entity.path, kind=entity.kind))

    def after_fork(self) -> None:
        """In the child: threads that are not there may have held the locks."""
        self._senders.after_fork()
        self.exchanges.after_fork()
        self.queues.after_fork()
        self.handled.after_fork()
        self.known_down = False

    # The primary, as the connections for all else have found it.

    def reached(self) -> None:
        self._failed_at = self._failing_since = None

    def failed(self) -> None:
        now = time.monotonic()
        if self._failed_at is None or self._failing_since is None or now > self._failed_at + _NEW_SERIES:
            self._failing_since = now
        self._failed_at = now

    def is_tired(self, patience: float) -> bool:
        """Whether attempts to reach the primary have failed for ``patience`` seconds, so that no retry helps."""
        return self.known_down or (
            self._failing_since is not None and time.monotonic() >= self._failing_since + patience
        )

    @property
    def is_away(self) -> bool:
        """Whether the primary was not there a moment ago."""
        return self.known_down or (
            self._failed_at is not None and time.monotonic() < self._failed_at + DECLARE_INTERVAL
        )

    def pace(self) -> None:
        """Wait until the primary may be tried again.

        Kombu's own waits stand between attempts to connect. A connection to a pair is there at once, so that a command
        to an unreachable primary would be tried again without a pause.
        """
        if self._failed_at is not None:
            time.sleep(max(0.0, self._failed_at + RETRY_INTERVAL - time.monotonic()))


_lock = threading.Lock()
_pairs: dict[PairSettings, PairOfProcess] = {}


def pair_of_process(settings: PairSettings) -> PairOfProcess:
    """Give the process's pair of these settings. Raises `ConfigurationError`."""
    with _lock:
        found = _pairs.get(settings)
        if found is None:
            found = _pairs[settings] = PairOfProcess(settings)
        return found


def close_pairs() -> None:
    """Close all pairs of this process; publishing opens new ones.

    The end of the process closes them, too: this is for tests, and for what ends before its process does.
    """
    with _lock:
        pairs = list(_pairs.values())
        _pairs.clear()
    for pair in pairs:
        pair.close()


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    for pair in _pairs.values():
        pair.after_fork()


os.register_at_fork(after_in_child=_in_child)
