"""The tables, in versions. They are made by `pairmq postgres migrate`, never in passing: a role that sends and receives
needs no right to make any.

Everything is in the schema ``pairmq``. Names of queues are values in it, never identifiers. All instants are the
server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg

from pairmq_postgres._errors import SchemaVersion

_TABLES: tuple[LiteralString, ...] = (
    """
CREATE SCHEMA pairmq
""",
    """
CREATE TABLE pairmq.version (version integer NOT NULL)
""",
    """
CREATE TABLE pairmq.entity (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path text COLLATE "C" NOT NULL UNIQUE,
    kind text NOT NULL,
    lock_duration interval NOT NULL,
    max_delivery_count bigint,
    default_time_to_live interval,
    dead_letter_on_expiration boolean NOT NULL,
    requires_session boolean NOT NULL,
    single_consumer boolean NOT NULL,
    settings text NOT NULL  -- all requested settings, as JSON, to be returned on request
)
""",
    # What is read: one for each queue, with an empty subscription, and one for each subscription of a topic.
    """
CREATE TABLE pairmq.source (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entity bigint NOT NULL REFERENCES pairmq.entity ON DELETE CASCADE,
    subscription text COLLATE "C" NOT NULL,
    UNIQUE (entity, subscription)
)
""",
    # No foreign key to the source: each send would write a row lock there, all senders of a queue into the same row.
    """
CREATE TABLE pairmq.message (
    number bigint GENERATED ALWAYS AS IDENTITY,
    shelf bigint NOT NULL,  -- the id of the source; negative among its dead letters
    enqueued_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    due_at timestamptz,  -- scheduled; cleared once it is due
    expires_at timestamptz,
    deliveries bigint NOT NULL DEFAULT 0,  -- those that have ended
    session bytea,  -- where the entity requires sessions
    reason text,
    description text,
    header text NOT NULL,
    body bytea NOT NULL,
    -- Where order is kept: the transaction that stored it, if that was one of an application. What is at or above the
    -- oldest that still runs is not read yet, lest one that commits later have a message before it.
    tx xid8,
    later boolean NOT NULL GENERATED ALWAYS AS (due_at IS NOT NULL) STORED,
    PRIMARY KEY (shelf, later, number)  -- what is scheduled is not in the way of what is ready
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0
)
""",
    """
CREATE INDEX message_due ON pairmq.message (shelf, due_at) WHERE due_at IS NOT NULL
""",
    """
CREATE INDEX message_expiring ON pairmq.message (shelf, expires_at) WHERE expires_at IS NOT NULL
""",
    """
CREATE INDEX message_session ON pairmq.message (shelf, session, number) WHERE session IS NOT NULL
""",
    """
CREATE TABLE pairmq.session (
    shelf bigint NOT NULL REFERENCES pairmq.source ON DELETE CASCADE,
    name bytea NOT NULL,
    locked_until timestamptz,
    lock text COLLATE "C",
    state bytea,
    PRIMARY KEY (shelf, name)
) WITH (fillfactor = 70)
""",
    # What a receive has locked, all of it in one row: so a message's own row is written once, and removed once. A
    # message is locked if and only if a lease lists it.
    """
CREATE TABLE pairmq.lease (
    shelf bigint NOT NULL,
    name text COLLATE "C" NOT NULL,  -- which receiver, and which of its receives
    until timestamptz NOT NULL,  -- then the next receive removes it
    numbers bigint[] NOT NULL,
    PRIMARY KEY (shelf, name)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
)
""",
    """
ALTER TABLE pairmq.lease ALTER COLUMN numbers SET STORAGE EXTERNAL
""",
    """
CREATE TABLE pairmq.inbox (
    key text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
)
""",
    """
CREATE INDEX inbox_until ON pairmq.inbox (until)
""",
)

STEPS: tuple[tuple[LiteralString, ...], ...] = (_TABLES,)
"""What leads from each version to the next, beginning without tables. A change to the tables adds a step."""

VERSION = len(STEPS)

_LOCK = "SELECT pg_advisory_xact_lock(5791223489)"  # two programs that migrate at the same time take turns
_FIND = "SELECT to_regclass('pairmq.version') IS NOT NULL"
_SET = ("DELETE FROM pairmq.version", "INSERT INTO pairmq.version (version) VALUES ({version})")
# Left by a send that ran while its queue was deleted.
_ORPHANS: tuple[LiteralString, ...] = (
    "DELETE FROM pairmq.message WHERE abs(shelf) NOT IN (SELECT id FROM pairmq.source)",
    "DELETE FROM pairmq.lease WHERE abs(shelf) NOT IN (SELECT id FROM pairmq.source)",
)


def script(since: int = 0) -> str:
    """Return the SQL that brings a database from a version to this one, as one transaction."""
    statements = [statement.strip() for step in STEPS[since:] for statement in step]
    statements += [each.format(version=VERSION) for each in _SET]
    return "".join(f"{statement};\n\n" for statement in ("BEGIN", *statements, "COMMIT"))


def migrate(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Make the tables, or bring earlier ones up to this version, as a role that may create a schema; blocks.

    Returns the version before, 0 without tables, and after. A failure changes nothing.
    """
    with psycopg.connect(**parameters) as connection:
        connection.execute(_LOCK)
        found = connection.execute(_FIND).fetchone() == (True,)
        row = connection.execute("SELECT version FROM pairmq.version").fetchone() if found else None
        before: int = row[0] if row else 0
        if before > VERSION:
            raise SchemaVersion
        for step in STEPS[before:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(_SET[0])
        connection.execute("INSERT INTO pairmq.version (version) VALUES (%s)", (VERSION,))
        for statement in _ORPHANS:
            connection.execute(statement)
    return before, VERSION
