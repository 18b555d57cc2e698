"""The tables. All instants and durations are whole microseconds, instants since 1970 in UTC."""

from __future__ import annotations

APPLICATION_ID = 0x506D5131
"""Stands in the file's header, and tells our files from those of other programs ("PmQ1")."""

_FIRST = (
    """
    CREATE TABLE entity (
        id INTEGER PRIMARY KEY,
        path TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        lock_duration INTEGER NOT NULL,
        max_delivery_count INTEGER,
        default_time_to_live INTEGER,
        dead_letter_on_expiration INTEGER NOT NULL,
        settings TEXT NOT NULL  -- all that was asked for, as JSON, to be told again
    )
    """,
    # What holds messages: two for each queue and each subscription, one of them for dead letters.
    """
    CREATE TABLE shelf (
        id INTEGER PRIMARY KEY,
        entity INTEGER NOT NULL REFERENCES entity ON DELETE CASCADE,
        subscription TEXT NOT NULL,  -- empty for a queue's own
        dead_letter INTEGER NOT NULL,
        UNIQUE (entity, subscription, dead_letter)
    )
    """,
    # What is neither scheduled nor locked has a free_at of 0, not of the instant at which it became free: when the
    # clock is set back, that lies ahead again, and nobody would get the message until it comes.
    # AUTOINCREMENT: a number is never given twice, so that a late settlement can't hit a newer message. The body stands
    # last: SQLite reads a row from its beginning, and a large body lies on pages of its own.
    """
    CREATE TABLE message (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        shelf INTEGER NOT NULL REFERENCES shelf ON DELETE CASCADE,
        enqueued_at INTEGER NOT NULL,
        free_at INTEGER NOT NULL,  -- nobody gets it before: it is scheduled, or locked until then
        lock TEXT,  -- who received it last, and in which of its receives; empty until then and when given back
        expires_at INTEGER,
        deliveries INTEGER NOT NULL DEFAULT 0,
        reason TEXT,
        description TEXT,
        header TEXT NOT NULL,
        body BLOB NOT NULL
    )
    """,
    # A receiver walks along a shelf in order. With free_at in the index, what it must pass over costs it no row.
    "CREATE INDEX message_order ON message (shelf, number, free_at)",
    # For finding what has to be put away, without looking at what has not.
    "CREATE INDEX message_expiring ON message (shelf, expires_at) WHERE expires_at IS NOT NULL",
    "CREATE INDEX message_returned ON message (shelf, deliveries) WHERE deliveries > 0",
    # The probe writes here for real (see `Store.probe`).
    "CREATE TABLE probe (id INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    "INSERT INTO probe (id, at) VALUES (1, 0)",
)
_ONE_CONSUMER_AT_A_TIME = (
    "ALTER TABLE entity ADD COLUMN single_consumer INTEGER NOT NULL DEFAULT 0",
    # Whose turn it is is asked at every look.
    "CREATE INDEX message_locked ON message (shelf, free_at) WHERE lock IS NOT NULL",
)

STEPS = (_FIRST, _ONE_CONSUMER_AT_A_TIME)
"""What leads from each version to the next, beginning with an empty file. Whoever changes the tables adds a step."""

VERSION = len(STEPS)
