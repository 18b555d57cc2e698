"""A whole transport in one file: ``template:///path/to/file.db``, queues in a SQLite file.

Copy it and put your broker's client in the place of `sqlite3`. From top to bottom: the URL, the errors, the connection,
the sender, the receiver, the administration, the transport, the plugin's hook.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pairmq.model import (
    ConfigurationError,
    Delivery,
    Entity,
    EntityKind,
    FailureKind,
    FailureReason,
    Message,
    Source,
    TransportError,
)
from pairmq.plugins import TransportRecord, hookimpl
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    Admin,
    BrokerUrl,
    Capabilities,
    Endpoint,
    Job,
    MalformedHeader,
    QueueCounts,
    QueueProperties,
    Receiver,
    Scope,
    Sender,
    Transport,
    Worker,
    chosen_endpoint,
    decode_header,
    encode_header,
    endpoint_with_default_name,
)

T = TypeVar("T")

CAPABILITIES = Capabilities(max_message_bytes=1_000_000, dead_letter=True, lock_renewal=True, probes=True, durable=True)
"""What the broker does. What is not named is disclaimed, and refused as *not-supported*."""

_LOCK_WAIT = 5.0  # seconds that SQLite waits for another process's lock
_LOCK = 60.0  # seconds that a message stays locked in a queue that does not say so
_POLL = 0.1  # seconds between two polls of a waiting receiver: nothing announces a message of another process

_TABLES = (
    "CREATE TABLE IF NOT EXISTS queue (path TEXT PRIMARY KEY, settings TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS message (
        number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, dead INTEGER NOT NULL DEFAULT 0,
        sent_at REAL NOT NULL, free_at REAL NOT NULL DEFAULT 0, lock TEXT, deliveries INTEGER NOT NULL DEFAULT 0,
        reason TEXT, description TEXT, header TEXT NOT NULL, body BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS message_order ON message (path, dead, number)",
)
_BURY = "UPDATE message SET dead = 1, lock = NULL, free_at = 0, reason = ?, description = ?"


# ---- URL


def read_url(url: str) -> tuple[Endpoint, Path]:
    """Read ``template:///absolute/path``, with the options that every broker's URL has.

    Raises:
        ConfigurationError: it is not that; the text never repeats a part that may hold a password.
    """
    read = BrokerUrl(url, "template:///absolute/path/to/file.db", "template")
    options = read.options(*ENDPOINT_OPTIONS)
    written = read.decoded(read.parts.path, "path")
    path = Path(written).resolve()
    if read.parts.netloc or not written or not path.name:
        raise ConfigurationError(f"{read.where} names no file: write it as {read.form}")
    # Two URLs of one broker must have one identity: a broker can't be paired with itself.
    identity = ("template", str(path))
    default = endpoint_with_default_name(identity, f"template://{path}", path.stem, local=True)
    return chosen_endpoint(default, options, read.where), path


# ---- Errors


class NoQueue(Exception):
    """There is no such queue."""


class LockLost(Exception):
    """Another consumer may have the message by now."""


def failure(error: Exception, doing: str) -> TransportError:
    """Say what failover should do about an error: the one place that knows the client's exceptions."""
    kind, reason, certain = FailureKind.UNAVAILABLE, FailureReason.OTHER, False  # when in doubt, unavailable
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, NoQueue):
        kind, reason, certain = FailureKind.REFUSED, FailureReason.NOT_FOUND, True
    elif isinstance(error, LockLost):
        kind, reason, certain = FailureKind.REFUSED, FailureReason.LOCK_LOST, True
    elif code == sqlite3.SQLITE_BUSY:
        reason, certain = FailureReason.TIMEOUT, True
    elif code == sqlite3.SQLITE_FULL:
        reason, certain = FailureReason.QUOTA, True
    elif code == sqlite3.SQLITE_CANTOPEN or isinstance(error, FileNotFoundError):
        reason, certain = FailureReason.CONNECTION, True
    made = TransportError(f"{doing}: {str(error) or type(error).__name__}", kind, reason, maybe_applied=not certain)
    made.__cause__ = error
    return made


# ---- Connection


class File:
    """The connection to the broker, shared by all objects of a transport; `sqlite3` blocks, so a thread uses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.worker = Worker("pairmq-template")
        self.left: set[str] = set()
        """Locks to be released with the next transaction; patterns for GLOB."""

    async def run(self, work: Callable[[sqlite3.Connection], T], scope: Scope, doing: str) -> T:
        """Do something in a transaction.

        Args:
            work: what to do.
            scope: of the object that asks.
            doing: the same in words, for errors.
        """
        try:
            return await self.worker.run(lambda: self.transaction(work), scope)
        except TransportError:
            raise
        except Exception as error:
            raise failure(error, doing) from error

    def transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something in a transaction; in the thread. It connects each time: a file makes that cheap."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=_LOCK_WAIT, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")  # what is committed is on the disk
            connection.execute("BEGIN IMMEDIATE")
            self._path.stat()  # it may have been moved while this waited for the lock
            for table in _TABLES:
                connection.execute(table)
            left = tuple(self.left)
            for locks in left:
                unlock(connection, locks)
            result = work(connection)
            connection.execute("COMMIT")
            self.left.difference_update(left)
        return result

    def release(self, locks: str) -> Job[None]:
        """Release locks, behind what waits for the thread; if that fails, with the next transaction.

        Raises:
            TransportError: the transport is closed.
        """
        self.left.add(locks)
        return self.worker.submit(lambda: self.transaction(lambda connection: unlock(connection, locks)))


def at(seconds: float) -> datetime:
    """Give the instant of a time as the file holds it."""
    return datetime.fromtimestamp(seconds, UTC)


def unlock(connection: sqlite3.Connection, locks: str) -> None:
    """Release the messages whose locks match a pattern."""
    connection.execute("UPDATE message SET lock = NULL, free_at = 0 WHERE lock GLOB ?", (locks,))


def path_of(entity: Entity) -> str:
    """Return a queue's path; a topic is refused."""
    if entity.kind is EntityKind.TOPIC:
        text = f"{entity}: this transport has no topics"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
    return entity.path


def settings_of(connection: sqlite3.Connection, path: str) -> QueueProperties:
    """Read a queue's settings."""
    found = connection.execute("SELECT settings FROM queue WHERE path = ?", (path,)).fetchone()
    if found is None:
        raise NoQueue("there is no such queue")
    return QueueProperties.from_json(found[0])


# ---- Sender


class TemplateSender(Sender):
    """Sends to one queue."""

    def __init__(self, transport: TemplateTransport, entity: Entity) -> None:
        self._transport = transport
        self._entity, self._path = entity, path_of(entity)
        self._doing = f"send to {entity}"
        self.scope: Scope = Scope(transport.scope, self._doing)

    async def send(self, message: Message) -> None:
        self.scope.check()
        self._transport.check_message(self._entity, message)  # before any IO: it is refused in an outage, too
        row = (self._path, time.time(), encode_header(message), message.body)

        def store(connection: sqlite3.Connection) -> None:
            settings_of(connection, self._path)
            connection.execute("INSERT INTO message (path, sent_at, header, body) VALUES (?, ?, ?, ?)", row)

        await self._transport.file.run(store, self.scope, self._doing)


# ---- Receiver


class TemplateReceiver(Receiver):
    """Reads a queue or a dead-letter queue.

    A lock is an instant in the message's row, before which no consumer gets it, and a name, with which it is settled.
    """

    def __init__(self, transport: TemplateTransport, source: Source) -> None:
        self._transport, self._file = transport, transport.file
        self._source, self._path = source, path_of(source.entity)
        self._name, self._receives = secrets.token_hex(8), 0
        self.scope: Scope = Scope(transport.scope, f"receive from {source}")
        transport.receivers.add(self)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        ends_at = time.monotonic() + wait
        while True:
            found = await self._take(max_messages)
            left = ends_at - time.monotonic()
            if found or left <= 0:
                return found
            await self.scope.race(asyncio.sleep(min(_POLL, left)))

    async def complete(self, delivery: Delivery) -> None:
        await self._settle("DELETE FROM message", delivery)

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle("UPDATE message SET lock = NULL, free_at = 0", delivery)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        if self._source.dead_letter:
            text = f"{self._source}: its messages are dead-lettered already"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        texts = [text[:1024].encode(errors="replace").decode() for text in (reason, description)]
        await self._settle(_BURY, delivery, *texts)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        settings = await self._run(lambda connection: settings_of(connection, self._path))
        until = time.time() + (settings.lock_duration or _LOCK)
        await self._settle("UPDATE message SET free_at = ?", delivery, until)
        return replace(delivery, locked_until=at(until))

    async def _release(self) -> None:
        self._transport.receivers.discard(self)
        with contextlib.suppress(Exception):  # then the next receiver does it, or the locks end
            async with asyncio.timeout(1.0):
                await self._file.release(f"{self._name}:*").outcome()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._file.run(work, self.scope, f"receive from {self._source}")

    async def _take(self, most: int) -> list[Delivery]:
        """Lock and decode what is free now."""
        self._receives += 1
        lock = f"{self._name}:{self._receives}"
        try:
            found, malformed = await self._run(lambda connection: self._taken(connection, most, lock))
        except asyncio.CancelledError:
            with contextlib.suppress(TransportError):
                self._file.release(lock)  # it may have been done
            raise
        for body, problem in malformed:
            self.dead_lettered(Message(body if isinstance(body, bytes) else b""), "malformed", problem)
        return found

    def _taken(
        self, connection: sqlite3.Connection, most: int, lock: str
    ) -> tuple[list[Delivery], list[tuple[object, str]]]:
        settings, now, dead = settings_of(connection, self._path), time.time(), self._source.dead_letter
        until = now + (settings.lock_duration or _LOCK)
        if settings.max_delivery_count is not None and not dead:
            change = f"{_BURY} WHERE path = ? AND NOT dead AND free_at <= ? AND deliveries >= ?"
            which = (self._path, now, settings.max_delivery_count)
            connection.execute(change, ("max-delivery-count", "it was never completed", *which))
        query = (
            "SELECT number, sent_at, deliveries + 1, reason, description, header, body FROM message "
            "WHERE path = ? AND dead = ? AND free_at <= ? ORDER BY number LIMIT ?"
        )
        found: list[Delivery] = []
        malformed: list[tuple[object, str]] = []
        for row in connection.execute(query, (self._path, dead, now, most)).fetchall():
            number, sent_at, deliveries, reason, description, header, body = row
            try:
                message = decode_header(header, body)
            except MalformedHeader as error:
                if not dead:  # it must not block the queue
                    connection.execute(f"{_BURY} WHERE number = ?", ("malformed", str(error), number))
                    malformed.append((body, str(error)))
                    continue
                message = Message(body if isinstance(body, bytes) else b"")
            change = "UPDATE message SET lock = ?, free_at = ?, deliveries = ? WHERE number = ?"
            connection.execute(change, (lock, until, deliveries, number))
            delivery = Delivery(
                message, (number, lock), deliveries, str(number), at(sent_at), at(until), reason, description
            )
            found.append(delivery)
        return found, malformed

    async def _settle(self, change: str, delivery: Delivery, *values: object) -> None:
        """Change the row of a message that this receiver has locked."""
        number, lock = delivery.lock_token if isinstance(delivery.lock_token, tuple) else (0, "")

        def settle(connection: sqlite3.Connection) -> None:
            held = (number, lock, time.time())
            changed = connection.execute(f"{change} WHERE number = ? AND lock = ? AND free_at > ?", (*values, *held))
            if changed.rowcount != 1 or not lock.startswith(self._name):
                raise LockLost("its lock has ended, and it will be redelivered")

        await self._run(settle)


# ---- Admin


class TemplateAdmin(Admin):
    """Creates, counts and probes queues."""

    def __init__(self, transport: TemplateTransport) -> None:
        self._file = transport.file
        self._scope = Scope(transport.scope)

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a queue. It keeps to ``lock_duration`` and ``max_delivery_count``, and reports the other settings."""
        asked = properties or QueueProperties()
        if asked.requires_session or asked.single_consumer:
            text = f"create {entity}: there are no sessions, and no queues for a single consumer"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        row = (path_of(entity), asked.to_json())

        def create(connection: sqlite3.Connection) -> bool:
            return connection.execute("INSERT OR IGNORE INTO queue VALUES (?, ?)", row).rowcount == 1

        return await self._do(f"create {entity}", create)

    async def properties(self, entity: Entity) -> QueueProperties:
        return await self._do(f"read {entity}", lambda connection: settings_of(connection, path_of(entity)))

    async def counts(self, source: Source) -> QueueCounts:
        def count(connection: sqlite3.Connection) -> QueueCounts:
            settings_of(connection, path_of(source.entity))
            now = time.time()
            query = (
                "SELECT total(NOT dead AND free_at <= ?), total(NOT dead AND free_at > ?), total(dead) "
                "FROM message WHERE path = ?"
            )
            active, locked, dead = connection.execute(query, (now, now, source.entity.path)).fetchone()
            return QueueCounts(int(active), int(locked), 0, int(dead))

        return await self._do(f"count {source}", count)

    async def delete(self, entity: Entity) -> bool:
        def delete(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM message WHERE path = ?", (path_of(entity),))
            return connection.execute("DELETE FROM queue WHERE path = ?", (entity.path,)).rowcount == 1

        return await self._do(f"delete {entity}", delete)

    async def purge(self, source: Source) -> int:
        def purge(connection: sqlite3.Connection) -> int:
            settings_of(connection, path_of(source.entity))
            values = (source.entity.path, source.dead_letter)
            return connection.execute("DELETE FROM message WHERE path = ? AND dead = ?", values).rowcount

        return await self._do(f"purge {source}", purge)

    async def probe(self, entity: Entity) -> None:
        """Store a message and delete it in one transaction, which no consumer sees and which the disk must take."""

        def probe(connection: sqlite3.Connection) -> None:
            settings_of(connection, path_of(entity))
            values = (entity.path, time.time(), "{}", bytes(4096))
            made = connection.execute("INSERT INTO message (path, sent_at, header, body) VALUES (?, ?, ?, ?)", values)
            connection.execute("DELETE FROM message WHERE number = ?", (made.lastrowid,))

        await self._do(f"probe {entity}", probe)

    async def _do(self, doing: str, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._file.run(work, self._scope, doing)


# ---- Transport


class TemplateTransport(Transport):
    """Queues in one SQLite file.

    Args:
        url: ``template:///absolute/path/to/file.db``.

    Raises:
        ConfigurationError: the URL is invalid.
    """

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        endpoint, path = read_url(url)
        super().__init__(endpoint)
        self.file = File(path)
        self.receivers: set[Receiver] = set()
        self._admin = TemplateAdmin(self)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return TemplateSender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return TemplateReceiver(self, source)

    def measure(self, message: Message) -> int:
        return len(encode_header(message)) + len(message.body)

    async def _close(self) -> None:
        await asyncio.gather(*(receiver.close() for receiver in tuple(self.receivers)))
        await self.file.worker.stop(0.5)


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield one record for each transport: its name, its URL schemes, and what makes one from a URL."""
    description = "the template for new transports: queues in a SQLite file"
    yield TransportRecord("template", ("template",), TemplateTransport, CAPABILITIES, description)
