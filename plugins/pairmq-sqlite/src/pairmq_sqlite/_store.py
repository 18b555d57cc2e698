"""All SQL on entities and messages. Everything here blocks, and runs in the worker's thread, in a transaction.

As a transaction holds the write lock from its beginning, these methods are plain: nothing changes between two
statements. They raise SQLite's exceptions, or `NoSuchEntity`, `OtherKind` and `LockEnded`, which `_errors` maps.
Instants and durations are whole microseconds.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pairmq.model import Entity, EntityKind, Message, Source
from pairmq.transport import MalformedHeader, QueueCounts, QueuePositions, decode_header
from pairmq_sqlite._database import Database
from pairmq_sqlite._errors import LockEnded, NoSuchEntity, OtherKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_SHOWN = 200


_NEVER = 2**62
"""An instant, or a number of deliveries, that no message reaches."""
_PROBE_BYTES = 64 * 1024
_SWEEP = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """What a queue's or topic's settings mean to its messages, in the order of its columns."""

    lock_duration: int  # how long a lock lasts
    max_delivery_count: int | None  # deliveries after which a message is dead-lettered; None for no limit
    default_time_to_live: int | None  # how long a message lives at most; None forever
    dead_letter_on_expiration: bool  # whether an expired message is dead-lettered, or dropped
    single_consumer: bool  # whether no receiver gets a message while another one holds one
    as_json: str  # all settings, kept to be returned on request


@dataclass(frozen=True, slots=True)
class NewRow:
    """A message to be stored; its time-to-live is counted from when it can be received."""

    header: str
    body: bytes
    due_at: int | None = None
    time_to_live: int | None = None

    @property
    def size(self) -> int:
        return len(self.header) + len(self.body)


class Row(NamedTuple):
    number: int  # its position, like no other's in the file
    enqueued_at: int  # when it was stored
    deliveries: int  # how often it was delivered, the one under way included
    reason: str | None  # why it was dead-lettered
    description: str | None  # the same in a sentence
    header: object  # as in `NewRow`, or whatever another program wrote there
    body: object  # likewise

    @property
    def size(self) -> int:
        return sum(len(part) for part in (self.header, self.body) if isinstance(part, str | bytes))


@dataclass(frozen=True, slots=True)
class Place:
    live: int  # where its messages lie
    dead: int  # where its dead letters lie
    reads_dead: bool  # whether the source is the dead letters
    settings: Settings  # its entity's

    @property
    def shelf(self) -> int:
        return self.dead if self.reads_dead else self.live

    @property
    def one_at_a_time(self) -> bool:
        """Whether one consumer reads it at a time; dead letters have any number of readers."""
        return self.settings.single_consumer and not self.reads_dead


def since_1970(instant: datetime) -> int:
    """An instant in microseconds since 1970; whole numbers all the way, so that it is exact."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(microseconds: int) -> datetime:
    """The inverse of `since_1970`; what no calendar holds is cut to the year 9999."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def microseconds_of(seconds: float) -> int:
    """A duration in microseconds, at least one."""
    return max(round(seconds * 1_000_000), 1)


def shown(header: object, body: object) -> Message:
    """Decode a row that may be malformed, so that a person can look at it: its header becomes a property."""
    try:
        return decode_header(header, body)
    except MalformedHeader:
        text = header if isinstance(header, str) else repr(header)[:_MOST_SHOWN]
        # A lone surrogate could not go into a message.
        raw = text.encode(errors="replace").decode()
        return Message(body if isinstance(body, bytes) else b"", application_properties={"raw:header": raw})


class Store:
    """The entities and messages in a database, which is in a transaction whenever a method is called."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.connection.execute

    # Entities

    def create(self, entity: Entity, settings: Settings) -> bool:
        """Make a queue or topic; False when it exists."""
        found = self._execute("SELECT kind FROM entity WHERE path = ?", (entity.path,)).fetchone()
        if found is not None and found[0] != entity.kind.value:
            raise OtherKind
        if found is not None:
            return False
        made = self._execute(
            """
            INSERT INTO entity (path, kind, lock_duration, max_delivery_count, default_time_to_live,
                dead_letter_on_expiration, single_consumer, settings)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)
            """,
            (entity.path, entity.kind.value, *astuple(settings)),
        )
        if entity.kind is EntityKind.QUEUE:
            self._add_shelves(made.lastrowid, "")
        return True

    def subscribe(self, topic: Entity, name: str) -> bool:
        """Make a subscription; False when it exists."""
        found, _ = self._entity(topic)
        if self._execute("SELECT 1 FROM shelf WHERE entity = ? AND subscription = ?", (found, name)).fetchone():
            return False
        self._add_shelves(found, name)
        return True

    def exists(self, entity: Entity) -> bool:
        query = "SELECT 1 FROM entity WHERE path = ? AND kind = ?"
        return self._execute(query, (entity.path, entity.kind.value)).fetchone() is not None

    def settings(self, entity: Entity) -> Settings:
        return self._entity(entity)[1]

    def delete(self, entity: Entity) -> bool:
        """Delete an entity with all that it holds; False if it does not exist."""
        query = "DELETE FROM entity WHERE path = ? AND kind = ?"
        return self._execute(query, (entity.path, entity.kind.value)).rowcount > 0

    def entities(self, prefix: str) -> list[Entity]:
        query = "SELECT path, kind FROM entity WHERE substr(path, 1, length(?)) = ? ORDER BY path"
        return [Entity(path, EntityKind(kind)) for path, kind in self._execute(query, (prefix, prefix))]

    # Messages

    def send(self, entity: Entity, rows: Sequence[NewRow]) -> None:
        """Store messages in order, in the queue or in each subscription that the topic has now."""
        found, settings = self._entity(entity)
        shelves = self._execute("SELECT id FROM shelf WHERE entity = ? AND NOT dead_letter", (found,)).fetchall()
        now = now_us()
        for row in rows:
            free_at = 0 if row.due_at is None or row.due_at <= now else row.due_at
            lives = [lived for lived in (row.time_to_live, settings.default_time_to_live) if lived is not None]
            expires_at = max(free_at, now) + min(lives) if lives else None
            for (shelf,) in shelves:
                self._execute(
                    """
                    INSERT INTO message (shelf, enqueued_at, free_at, expires_at, header, body)
                    VALUES (?, ?, ?, ?, ?, ?)
                    """,
                    (shelf, now, free_at, expires_at, row.header, row.body),
                )
        self._database.check_room()

    def place(self, source: Source) -> Place:
        found, settings = self._entity(source.entity)
        query = "SELECT id FROM shelf WHERE entity = ? AND subscription = ? ORDER BY dead_letter"
        shelves = self._execute(query, (found, source.subscription or "")).fetchall()
        if not shelves:
            raise NoSuchEntity
        (live,), (dead,) = shelves
        return Place(live, dead, source.dead_letter, settings)

    def take(self, place: Place, lock: str, most: int, most_bytes: int) -> list[Row]:
        """Lock the first messages that are free, and no further one once those have ``most_bytes``. ``lock`` is a name
        of this receive, like no other; up to its colon it is the receiver's."""
        self._sweep(place)
        # A clock that was set back would have locks last by as much longer.
        latest = {"shelf": place.shelf, "until": now_us() + place.settings.lock_duration}
        self._execute(_END_IN_TIME, latest)
        if place.one_at_a_time and self._another_holds(place, lock):
            return []
        query = """
            SELECT number, enqueued_at, deliveries + 1, reason, description, header, body FROM message
            WHERE shelf = :shelf AND free_at <= :now
                AND coalesce(expires_at, :never) > :now AND deliveries < :most_deliveries
            ORDER BY number LIMIT :most
        """
        taken: list[Row] = []
        total = 0
        with closing(self._execute(query, {**_limits(place), "most": most})) as found:
            for row in map(Row._make, found):
                taken.append(row)
                total += row.size
                if total >= most_bytes:
                    break
        until = now_us() + place.settings.lock_duration
        self._database.connection.executemany(
            "UPDATE message SET lock = ?, free_at = ?, deliveries = deliveries + 1 WHERE number = ?",
            [(lock, until, row.number) for row in taken],
        )
        return taken

    def next_at(self, place: Place) -> int | None:
        """Return when the next scheduled or locked message becomes free; None without such a message."""
        query = "SELECT min(free_at) FROM message WHERE shelf = ? AND free_at > ?"
        found: int | None = self._execute(query, (place.shelf, now_us())).fetchone()[0]
        return found

    def complete(self, number: int, lock: str) -> bool:
        """Delete a message that a lock holds; False when the lock has ended."""
        query = "DELETE FROM message WHERE number = ? AND lock = ? AND free_at > ?"
        return self._execute(query, (number, lock, now_us())).rowcount == 1

    def abandon(self, number: int, lock: str) -> None:
        query = """
            UPDATE message SET free_at = 0, lock = NULL
            WHERE number = :number AND lock = :lock AND free_at > :now
        """
        _check_held(self._execute(query, {"number": number, "lock": lock, "now": now_us()}))

    def renew(self, place: Place, number: int, lock: str) -> int:
        """Let a lock last its whole duration from now, and return until when."""
        now = now_us()
        until = now + place.settings.lock_duration
        query = "UPDATE message SET free_at = ? WHERE number = ? AND lock = ? AND free_at > ?"
        _check_held(self._execute(query, (until, number, lock, now)))
        return until

    def dead_letter(self, place: Place, number: int, lock: str, reason: str, description: str) -> None:
        """Move a message that a lock holds to the dead letters, where it lives forever."""
        query = """
            UPDATE message SET shelf = :dead, free_at = 0, lock = NULL, expires_at = NULL,
                reason = :reason, description = :description
            WHERE number = :number AND lock = :lock AND free_at > :now
        """
        values = {"dead": place.dead, "now": now_us(), "number": number, "lock": lock}
        _check_held(self._execute(query, {**values, "reason": reason, "description": description}))

    def release(self, place: Place, locks: str) -> None:
        """Release all that is still held by the locks whose names match a pattern for GLOB."""
        query = """
            UPDATE message SET free_at = 0, lock = NULL
            WHERE shelf = :shelf AND free_at > :now AND lock GLOB :locks
        """
        self._execute(query, {"now": now_us(), "shelf": place.shelf, "locks": locks})

    def take_back(self, place: Place, lock: str) -> None:
        """Undo a `take` that no caller waits for any more: it never was a delivery."""
        query = """
            UPDATE message SET free_at = 0, lock = NULL, deliveries = deliveries - 1
            WHERE shelf = :shelf AND free_at > :now AND lock = :lock
        """
        self._execute(query, {"now": now_us(), "shelf": place.shelf, "lock": lock})

    def counts(self, place: Place) -> QueueCounts:
        """Count what a source holds; what has expired counts as put away, whether or not that was done yet."""
        query = """
            SELECT total(free_at <= :now AND NOT doomed),
                total(free_at > :now AND lock IS NOT NULL),
                total(free_at > :now AND lock IS NULL),
                total(free_at <= :now AND doomed AND (:keeps_expired OR NOT expired))
            FROM (
                SELECT free_at, lock, coalesce(expires_at, :never) <= :now AS expired,
                    coalesce(expires_at, :never) <= :now OR deliveries >= :most_deliveries AS doomed
                FROM message WHERE shelf = :shelf
            )
        """
        values = {**_limits(place), "keeps_expired": place.settings.dead_letter_on_expiration}
        active, locked, scheduled, doomed = map(int, self._execute(query, values).fetchone())
        (dead,) = self._execute("SELECT count(*) FROM message WHERE shelf = ?", (place.dead,)).fetchone()
        return QueueCounts(active, locked, scheduled, dead + doomed)

    def positions(self, place: Place) -> QueuePositions:
        """Return the number of the first message, locked or not, and the newest that the file has given to any."""
        (oldest,) = self._execute("SELECT min(number) FROM message WHERE shelf = ?", (place.shelf,)).fetchone()
        newest = self._execute("SELECT seq FROM sqlite_sequence WHERE name = 'message'").fetchone()
        return QueuePositions(oldest, newest[0] if newest else 0)

    def peek(self, place: Place, most: int) -> list[Row]:
        self._sweep(place)
        query = """
            SELECT number, enqueued_at, max(deliveries, 1), reason, description, header, body FROM message
            WHERE shelf = ? ORDER BY lock IS NULL AND free_at > ?, number LIMIT ?
        """
        return list(map(Row._make, self._execute(query, (place.shelf, now_us(), most))))

    def purge(self, place: Place) -> int:
        """Delete all that a source holds, locked and scheduled or not, and return how many."""
        return self._execute("DELETE FROM message WHERE shelf = ?", (place.shelf,)).rowcount

    def probe(self, entity: Entity) -> None:
        """Send a message and take it back, then write a mark of our own, which the commit brings to the disk."""
        self._database.mark()
        self.send(entity, [NewRow("{}", bytes(_PROBE_BYTES))])
        self._database.undo()
        self._execute("UPDATE probe SET at = ? WHERE id = 1", (now_us(),))

    def _entity(self, entity: Entity) -> tuple[int, Settings]:
        query = """
            SELECT id, lock_duration, max_delivery_count, default_time_to_live, dead_letter_on_expiration,
                single_consumer, settings
            FROM entity WHERE path = ? AND kind = ?
        """
        found = self._execute(query, (entity.path, entity.kind.value)).fetchone()
        if found is None:
            raise NoSuchEntity
        number, *settings = found
        return number, Settings(*settings)

    def _add_shelves(self, entity: int | None, subscription: str) -> None:
        for dead_letter in (False, True):
            values = (entity, subscription, dead_letter)
            self._execute("INSERT INTO shelf (entity, subscription, dead_letter) VALUES (?, ?, ?)", values)

    def _another_holds(self, place: Place, lock: str) -> bool:
        """Return whether another receiver holds a message: what is behind it must not pass it if it is redelivered."""
        query = """
            SELECT 1 FROM message
            WHERE shelf = ? AND lock IS NOT NULL AND free_at > ? AND lock NOT GLOB ? LIMIT 1
        """
        ours = f"{lock.partition(':')[0]}:*"
        return self._execute(query, (place.shelf, now_us(), ours)).fetchone() is not None

    def _sweep(self, place: Place) -> None:
        """Put away what has expired or was delivered too often: so many at a time, as others wait for the lock."""
        values = {"live": place.live, "dead": place.dead, "now": now_us(), "most": _SWEEP}
        settings = place.settings
        if settings.dead_letter_on_expiration:
            text = "its time-to-live ended before it was completed"
            self._execute(_BURY_EXPIRED, {**values, "reason": "expired", "description": text})
        else:
            self._execute(_DROP_EXPIRED, values)
        if settings.max_delivery_count is not None:
            text = f"it was delivered {settings.max_delivery_count} times and never completed"
            values = {**values, "most_deliveries": settings.max_delivery_count}
            self._execute(_BURY_RETURNED, {**values, "reason": "max-delivery-count", "description": text})


_END_IN_TIME = """
    UPDATE message SET free_at = :until WHERE shelf = :shelf AND lock IS NOT NULL AND free_at > :until
"""
_BURY_EXPIRED = """
    UPDATE message SET shelf = :dead, free_at = 0, lock = NULL, expires_at = NULL,
        reason = :reason, description = :description
    WHERE number IN (
        SELECT number FROM message WHERE shelf = :live AND expires_at <= :now AND free_at <= :now LIMIT :most
    )
"""
_DROP_EXPIRED = """
    DELETE FROM message WHERE number IN (
        SELECT number FROM message WHERE shelf = :live AND expires_at <= :now AND free_at <= :now LIMIT :most
    )
"""
_BURY_RETURNED = """
    UPDATE message SET shelf = :dead, free_at = 0, lock = NULL, expires_at = NULL,
        reason = :reason, description = :description
    WHERE number IN (
        SELECT number FROM message
        WHERE shelf = :live AND deliveries > 0 AND deliveries >= :most_deliveries AND free_at <= :now LIMIT :most
    )
"""


def now_us() -> int:
    """The wall clock, which all processes of a machine share, in microseconds since 1970."""
    return time.time_ns() // 1000


def _limits(place: Place) -> dict[str, int]:
    """What a message of this place must meet to be delivered. Dead letters neither expire nor have a delivery limit."""
    most = None if place.reads_dead else place.settings.max_delivery_count
    return {
        "shelf": place.shelf,
        "now": now_us(),
        "never": _NEVER,
        "most_deliveries": _NEVER if most is None else most,
    }


def _check_held(changed: sqlite3.Cursor) -> None:
    if changed.rowcount != 1:
        raise LockEnded
