"""The statements on entities and messages. Each call is one round trip: a statement, or a few in a pipeline, which
PostgreSQL runs as one transaction.

Whatever needs several steps is one statement with several parts, so that no transaction is ever left open by a client
that was cancelled, was killed or lost its connection. `statement_timestamp()` is when the statement reached the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString

_PLACE: Final[LiteralString] = """
place AS (
    SELECT e.*, s.id AS live, s.id * %(sign)s::bigint AS shelf, %(sign)s::bigint < 0 AS reads_dead,
        e.single_consumer AND %(sign)s::bigint > 0 AS one_at_a_time
    FROM pairmq.entity e JOIN pairmq.source s ON s.entity = e.id AND s.subscription = %(subscription)s::text
    WHERE e.path = %(path)s::text AND e.kind = %(kind)s::text
)"""
"""Where a source's messages are, and its entity's settings; no row if it does not exist."""

_BURIED: Final[LiteralString] = """
    due_at = NULL, expires_at = NULL, session = NULL"""
"""What a dead letter has not: it lives until a consumer completes it."""

_LISTED: Final[LiteralString] = """(
        SELECT unnest(numbers) FROM pairmq.lease WHERE shelf = (SELECT {shelf} FROM place)
    )"""
"""The numbers of the messages that are locked: what a lease lists is, until a `SWEEP` after its end removes it."""

_LOCKED: Final[LiteralString] = _LISTED.format(shelf="shelf")

# One look into the index for each number, whatever the planner believes: as `number = ANY (…)` it reads all of a queue
# that was small when its statistics were made. What is found is reached by its place, `ctid`.
_AT: Final[LiteralString] = """CROSS JOIN LATERAL (
        SELECT ctid AS at FROM pairmq.message WHERE shelf = {shelf} AND NOT later AND message.number = n.number LIMIT 1
    ) AS here"""

_COUNTED: Final[LiteralString] = f"""
    UPDATE pairmq.message SET deliveries = deliveries + 1 WHERE ctid = ANY (ARRAY(
        SELECT here.at FROM gone CROSS JOIN LATERAL unnest(gone.numbers) AS n (number)
        {_AT.format(shelf="(SELECT shelf FROM place)")}
    ))"""
"""Count a delivery that ended otherwise than by a settlement."""

_OWN: Final[LiteralString] = "name >= %(receiver)s::text AND name < left(%(receiver)s::text, -1) || ';'"
"""A receiver's leases; its name ends with a colon."""

SEND: Final[LiteralString] = """
WITH target AS (
    SELECT e.*, s.id AS shelf FROM pairmq.entity e LEFT JOIN pairmq.source s ON s.entity = e.id
    WHERE e.path = %(path)s::text AND e.kind = %(kind)s::text
), stored AS (
    INSERT INTO pairmq.message (shelf, due_at, expires_at, session, header, body)
    SELECT t.shelf, n.due_at,
        greatest(n.due_at, statement_timestamp()) + least(n.lives, t.default_time_to_live),
        CASE WHEN t.requires_session THEN n.session END, n.header, n.body
    FROM target t, unnest(
        %(headers)b::text[], %(bodies)b::bytea[], %(due_at)s::timestamptz[], %(lives)s::interval[],
        %(sessions)b::bytea[]
    ) WITH ORDINALITY AS n (header, body, due_at, lives, session, position)
    WHERE t.shelf IS NOT NULL AND (n.session IS NOT NULL OR NOT t.requires_session)
    ORDER BY n.position
)
SELECT requires_session FROM target LIMIT 1
"""
"""Store messages in order, in the queue or in each subscription that the topic has now."""

DATABASE: Final[LiteralString] = """
SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, oid::bigint
FROM pg_database WHERE datname = current_database()
"""
"""Which database it is, whatever way a connection to it takes; a copy on another server is another one. By numbers: a
connection with the encoding SQL_ASCII returns texts as bytes."""

# The keys of advisory locks: a number that is PairMQ's, and the queue; in the last a twentieth of a second, too: of the
# transaction's begin, lest one that stores for minutes fill the server's table of locks.
_STORING: Final[LiteralString] = "579122348, ({shelf} & 2147483647)::int"
_TURN: Final[LiteralString] = "579122350, (shelf & 2147483647)::int"
_NOTIFYING: Final[LiteralString] = """579122349,
            ((id * 7919 + (extract(epoch FROM now()) * 20)::bigint) & 2147483647)::int"""

_WAKE: Final[LiteralString] = f"""
    CASE WHEN %(wake)s::text IS NULL THEN NULL
        WHEN NOT pg_try_advisory_xact_lock_shared({_STORING.format(shelf="id")})
            THEN pg_notify('pairmq', %(wake)s::text)
        WHEN pg_try_advisory_xact_lock({_NOTIFYING}) THEN pg_notify('pairmq', %(wake)s::text)
    END::text"""
"""Have the commit wake receivers, unless that of another transaction will, which is open, stored in the same queue, and
began within the same twentieth of a second. Transactions that notify are committed one after the other, throughout the
database, each with its own write to the disk.

A receiver sleeps only where no transaction that has stored in its queue is open (`SWEEP` finds that out); else it looks
again soon, for what was committed without a notification. If the transaction that would have notified is rolled back,
the others' messages may wait for a poll."""

SHELF: Final[LiteralString] = """
SELECT s.id, s.xmin::text::bigint, e.single_consumer FROM pairmq.entity e JOIN pairmq.source s ON s.entity = e.id
WHERE e.path = %(path)s::text AND e.kind = %(kind)s::text AND s.subscription = ''
"""
"""Find the row of a queue, once: it is never written again."""

# The transaction that made the row tells it apart from one with the same number in tables that were filled anew.
_FOUND: Final[LiteralString] = "pairmq.source WHERE id = %(shelf)s::bigint AND xmin = %(made)s::text::xid"

_TX: Final[LiteralString] = "CASE WHEN %(in_order)s::boolean THEN pg_current_xact_id() END"

STORE: Final[LiteralString] = f"""
WITH target AS (
    SELECT id FROM {_FOUND}
), stored AS (
    INSERT INTO pairmq.message (shelf, header, body, tx)
    SELECT t.id, n.header, n.body, {_TX}
    FROM target t, unnest(%(headers)b::text[], %(bodies)b::bytea[]) WITH ORDINALITY AS n (header, body, position)
    ORDER BY n.position
)
SELECT {_WAKE} FROM target
"""
"""Store messages in a queue, in a transaction of the caller's, whose commit wakes receivers; no row without the queue
as `SHELF` has found it."""

STORE_ONE: Final[LiteralString] = f"""
INSERT INTO pairmq.message (shelf, header, body, tx)
SELECT id, %(header)b::text, %(body)b::bytea, {_TX} FROM {_FOUND} AND coalesce({_WAKE}, '') IS NOT NULL
"""
"""The same for one message, without the cost of arrays, of several parts and of a row to return. Its last condition is
always true: it depends on the queue's row, and so is evaluated for it alone."""

CLAIM: Final[LiteralString] = """
WITH past AS (
    SELECT key FROM pairmq.inbox
    WHERE until <= statement_timestamp() AND key <> %(key)s::text
        AND current_setting('transaction_isolation') = 'read committed'
    ORDER BY until LIMIT 10 FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM pairmq.inbox WHERE key IN (SELECT key FROM past)
)
INSERT INTO pairmq.inbox AS i (key, until) VALUES (%(key)s::text, statement_timestamp() + %(window)s::interval)
ON CONFLICT (key) DO UPDATE SET until = excluded.until WHERE i.until <= statement_timestamp()
RETURNING 1
"""
"""Claim a key unless it was, and forget some claims that are over: where no snapshot is older than what others did."""

NOTIFY: Final[LiteralString] = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify('pairmq', path) FROM unnest(%(paths)s::text[]) AS path
"""
"""There is nothing in this transaction to wait for the disk for."""

_TAKE_TURN: Final[LiteralString] = f"""
SELECT pg_advisory_xact_lock({_TURN}),
    CASE WHEN NOT one_at_a_time THEN set_config('synchronous_commit', 'off', true) END,
    CASE WHEN pg_try_advisory_lock({_STORING.format(shelf="shelf")})
        THEN NOT pg_advisory_unlock({_STORING.format(shelf="shelf")}) ELSE true END,
    requires_session AND NOT reads_dead, one_at_a_time, shelf
FROM place
"""

TURN: Final[LiteralString] = f"WITH {_PLACE}{_TAKE_TURN}"
"""Take a turn at the queue, and find whether an open transaction has messages for it: before each `TAKE`, in the
same transaction. By `TAKE` alone, which would wait for its turn, what others did meanwhile would not be seen.

The transaction does not wait for the disk: what a crash of the server loses of it are locks, as if they had ended, and
what the next one does again. Where one consumer reads at a time its lock outlasts a crash."""

SWEEP: Final[LiteralString] = f"""
WITH {_PLACE}, gone AS (
    DELETE FROM pairmq.lease WHERE shelf = (SELECT shelf FROM place) AND name = ANY (ARRAY(
        SELECT name FROM pairmq.lease WHERE shelf = (SELECT shelf FROM place) AND until <= statement_timestamp()
        LIMIT 100 FOR UPDATE SKIP LOCKED
    )) RETURNING numbers
), counted AS ({_COUNTED}
), due AS (
    UPDATE pairmq.message SET due_at = NULL WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM pairmq.message
        WHERE shelf = (SELECT live FROM place) AND due_at <= statement_timestamp()
        ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
), expired AS (
    SELECT ctid AS at FROM pairmq.message m
    WHERE shelf = (SELECT live FROM place) AND expires_at <= statement_timestamp()
        AND number NOT IN {_LISTED.format(shelf="live")}
    ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), worn AS (
    UPDATE pairmq.message SET shelf = -shelf, {_BURIED}, reason = 'max-delivery-count',
        description = format('it was delivered %%s times and never completed', deliveries)
    WHERE ctid = ANY (ARRAY(
        SELECT at FROM (
            SELECT ctid AS at, number, deliveries FROM pairmq.message
            WHERE shelf = (SELECT live FROM place) AND NOT later AND number >= %(worn)s::bigint
            ORDER BY number LIMIT 1000
        ) AS m
        WHERE deliveries >= (SELECT max_delivery_count FROM place) AND number NOT IN {_LISTED.format(shelf="live")}
    ))
), dropped AS (
    DELETE FROM pairmq.message
    WHERE ctid = ANY (ARRAY(SELECT at FROM expired, place WHERE NOT dead_letter_on_expiration))
), buried AS (
    UPDATE pairmq.message SET shelf = -shelf, {_BURIED},
        reason = 'expired', description = 'its time-to-live ended before it was completed'
    WHERE ctid = ANY (ARRAY(SELECT at FROM expired, place WHERE dead_letter_on_expiration))
){_TAKE_TURN}"""
"""Do the same, put away leases that have ended, messages that have expired, and those that are worn from the number on
that a `TAKE` found, and make due what is."""

_TAKE: Final[LiteralString] = f"""
WITH {_PLACE}, found AS MATERIALIZED (
    SELECT f.*, f.deliveries >= (SELECT max_delivery_count FROM place WHERE NOT reads_dead) AS is_worn,
        sum(octet_length(f.body)) OVER w - octet_length(f.body) AS preceding,
        width_bucket(row_number() OVER w, %(starts)b::bigint[]) AS look
    FROM (
        SELECT m.ctid AS at, m.number, m.enqueued_at, m.deliveries, m.reason, m.description, m.header, m.body
        FROM pairmq.message m
        WHERE m.shelf = (SELECT shelf FROM place) AND NOT m.later AND m.number NOT IN {_LOCKED}
            AND (m.expires_at IS NULL OR m.expires_at > statement_timestamp())
            AND {{which}}
        LIMIT %(most)s::bigint
    ) AS f WINDOW w AS (ROWS UNBOUNDED PRECEDING)
), worn AS (
    SELECT min(number) AS number FROM found WHERE is_worn
), taken AS NOT MATERIALIZED (
    SELECT * FROM found WHERE preceding < %(most_bytes)s::bigint AND (SELECT number IS NULL FROM worn)
), lease AS (
    INSERT INTO pairmq.lease (shelf, name, until, numbers)
    SELECT p.shelf, (%(locks)b::text[])[t.look], {{until}}, t.numbers
    FROM place p, (SELECT look, array_agg(number) AS numbers FROM taken GROUP BY look) AS t
    RETURNING extract(epoch FROM until - statement_timestamp())::float8 AS seconds
)
SELECT t.number, t.enqueued_at, t.deliveries + 1, t.reason, t.description, t.header, t.body,
    CASE WHEN t.preceding = 0 THEN (SELECT seconds FROM lease LIMIT 1) END, {{lost}},
    (SELECT number FROM worn),
    CASE WHEN t.number IS NULL THEN extract(epoch FROM least(
        (SELECT min(due_at) FROM pairmq.message WHERE shelf = p.shelf AND due_at IS NOT NULL),
        (SELECT min(until) FROM pairmq.lease WHERE shelf = p.shelf)
    ) - statement_timestamp())::float8 END, t.look
FROM place p LEFT JOIN taken t ON true
"""

_LOCKS: Final[Mapping[str, LiteralString]] = {
    "until": "statement_timestamp() + p.lock_duration",
    "lost": "NULL::boolean",
}

TAKE: Final[LiteralString] = _TAKE.format(
    which="NOT (SELECT requires_session AND NOT reads_dead OR one_at_a_time FROM place) ORDER BY m.number", **_LOCKS
)
"""Lock the first messages that are free for several looks, in turn, by a lease for each; one row without a number where
none is, and none without the source. Nothing is locked where some were delivered as often as is allowed: the number of
the first of these is in each row, for the next `SWEEP`."""

TAKE_ALONE: Final[LiteralString] = _TAKE.format(
    which=f"""(SELECT one_at_a_time AND NOT EXISTS (
                SELECT 1 FROM pairmq.lease l CROSS JOIN LATERAL unnest(l.numbers) AS n (number)
                {_AT.format(shelf="l.shelf")}
                WHERE l.shelf = place.shelf AND NOT starts_with(l.name, %(receiver)s::text)
            ) FROM place) AND (m.tx IS NULL OR m.tx < (SELECT pg_snapshot_xmin(pg_current_snapshot())))
        ORDER BY m.number""",
    **_LOCKS,
)
"""The same where one consumer reads at a time, for one look: nothing while another one has any."""

_OWN_SESSION: Final[LiteralString] = """
    SELECT {what} FROM pairmq.session
    WHERE shelf = (SELECT live FROM place) AND name = %(session)b::bytea AND lock = %(receiver)s::text
        AND locked_until > statement_timestamp()"""

TAKE_OF_SESSION: Final[LiteralString] = _TAKE.format(
    which="m.session = %(session)b::bytea AND EXISTS ("
    + _OWN_SESSION.format(what="1")
    + ") ORDER BY m.session, m.number",
    until="(" + _OWN_SESSION.format(what="locked_until") + ")",
    lost="NOT EXISTS (" + _OWN_SESSION.format(what="1") + ") OR NULL",
)
"""The same in a session that is locked: its messages' locks are the session's."""

COMPLETE: Final[LiteralString] = f"""
WITH held AS MATERIALIZED (
    SELECT numbers FROM pairmq.lease
    WHERE shelf = %(shelf)s::bigint AND name = ANY (%(locks)b::text[]) AND until > statement_timestamp() FOR UPDATE
), over AS (
    DELETE FROM pairmq.lease WHERE shelf = %(shelf)s::bigint AND name = ANY (%(over)b::text[])
), done AS (
    DELETE FROM pairmq.message WHERE ctid = ANY (ARRAY(
        SELECT here.at FROM unnest(%(numbers)b::bigint[]) AS n (number)
        {_AT.format(shelf="%(shelf)s::bigint")}
        WHERE (n.number IN (SELECT unnest(numbers) FROM held)) IS TRUE
    )) RETURNING number
)
SELECT count(*), CASE WHEN count(*) < cardinality(%(numbers)b::bigint[]) THEN array_agg(number) END FROM done
"""
"""Remove what is under locks that last, and leases that have no more messages."""

OVER: Final[LiteralString] = """
DELETE FROM pairmq.lease WHERE shelf = %(shelf)s::bigint AND name = ANY (%(over)s::text[])
"""

_HELD: Final[LiteralString] = """
held AS MATERIALIZED (
    SELECT * FROM pairmq.lease
    WHERE shelf = %(shelf)s::bigint AND name = ANY (%(locks)s::text[]) AND until > statement_timestamp()
        AND %(number)s::bigint = ANY (numbers)
    FOR UPDATE
)"""
"""The lease under which a message is locked: no `SWEEP` removes it meanwhile."""

_LET_GO: Final[LiteralString] = """
    UPDATE pairmq.lease l SET numbers = array_remove(l.numbers, %(number)s::bigint) FROM held
    WHERE l.shelf = held.shelf AND l.name = held.name"""

ABANDON: Final[LiteralString] = f"""
WITH {_HELD}, freed AS ({_LET_GO}
)
UPDATE pairmq.message SET deliveries = deliveries + 1
WHERE shelf = (SELECT shelf FROM held) AND NOT later AND number = %(number)s::bigint
RETURNING number
"""

DEAD_LETTER: Final[LiteralString] = f"""
WITH {_HELD}, freed AS ({_LET_GO}
)
UPDATE pairmq.message SET shelf = -shelf, {_BURIED}, deliveries = 0, reason = %(reason)s::text,
    description = %(description)s::text
WHERE shelf = (SELECT shelf FROM held) AND NOT later AND number = %(number)s::bigint
RETURNING number
"""

RENEW: Final[LiteralString] = f"""
WITH {_HELD}, lasting AS (
    SELECT held.*, statement_timestamp() + e.lock_duration AS renewed, cardinality(numbers) = 1 AS alone
    FROM held, pairmq.source s JOIN pairmq.entity e ON e.id = s.entity
    WHERE s.id = abs(held.shelf) AND EXISTS (
        SELECT 1 FROM pairmq.message m
        WHERE m.shelf = held.shelf AND NOT m.later AND m.number = %(number)s::bigint
    )
), extended AS (
    UPDATE pairmq.lease l SET until = r.renewed FROM lasting r WHERE l.shelf = r.shelf AND l.name = r.name AND r.alone
), freed AS (
    UPDATE pairmq.lease l SET numbers = array_remove(l.numbers, %(number)s::bigint)
    FROM lasting r WHERE l.shelf = r.shelf AND l.name = r.name AND NOT r.alone
), made AS (
    INSERT INTO pairmq.lease (shelf, name, until, numbers)
    SELECT shelf, %(own)s::text, renewed, ARRAY[%(number)s::bigint] FROM lasting WHERE NOT alone
)
SELECT extract(epoch FROM renewed - statement_timestamp())::float8, NOT alone FROM lasting
"""
"""Renew a message's lock: it gets a lease of its own."""

RELEASE: Final[LiteralString] = f"""
WITH {_PLACE}, own AS (
    DELETE FROM pairmq.lease WHERE shelf = (SELECT shelf FROM place) AND {_OWN} RETURNING name, numbers
), gone AS (
    SELECT numbers FROM own WHERE name <> ALL (%(locks)s::text[])
)
{_COUNTED}
"""
"""Release what a receiver held that has closed. What its receives with no answer have locked was no delivery."""

TAKE_BACK: Final[LiteralString] = f"""
WITH {_PLACE}
DELETE FROM pairmq.lease WHERE shelf = (SELECT shelf FROM place) AND name = ANY (%(locks)s::text[])
"""
"""Undo each `TAKE` whose answer never came: it was no delivery."""

ACCEPT: Final[LiteralString] = f"""
WITH RECURSIVE {_PLACE}, each AS (
    (SELECT session FROM pairmq.message WHERE shelf = (SELECT shelf FROM place) AND session IS NOT NULL
        AND %(session)b::bytea IS NULL ORDER BY session LIMIT 1)
    UNION ALL
    SELECT (SELECT session FROM pairmq.message WHERE shelf = (SELECT shelf FROM place) AND session > each.session
        ORDER BY session LIMIT 1)
    FROM each WHERE each.session IS NOT NULL
), free AS (
    SELECT each.session AS name, first.number FROM each CROSS JOIN LATERAL (
        SELECT m.number FROM pairmq.message m
        WHERE m.shelf = (SELECT shelf FROM place) AND m.session = each.session
            AND (m.due_at IS NULL OR m.due_at <= statement_timestamp())
            AND (m.expires_at IS NULL OR m.expires_at > statement_timestamp())
        ORDER BY m.number LIMIT 1
    ) AS first
    WHERE NOT EXISTS (
        SELECT 1 FROM pairmq.session s
        WHERE s.shelf = (SELECT live FROM place) AND s.name = each.session AND s.locked_until > statement_timestamp()
    )
    UNION ALL SELECT %(session)b::bytea, 0 WHERE %(session)b::bytea IS NOT NULL
    ORDER BY 2 LIMIT 1
), accepted AS (
    INSERT INTO pairmq.session AS s (shelf, name, locked_until, lock)
    SELECT p.live, free.name, statement_timestamp() + p.lock_duration, %(receiver)s::text FROM free, place p
    WHERE p.requires_session AND NOT p.reads_dead
    ON CONFLICT (shelf, name) DO UPDATE SET locked_until = excluded.locked_until, lock = excluded.lock
    WHERE s.locked_until IS NULL OR s.locked_until <= statement_timestamp()
    RETURNING s.name, extract(epoch FROM s.locked_until - statement_timestamp())::float8 AS seconds
)
SELECT p.requires_session AND NOT p.reads_dead, a.name, a.seconds FROM place p LEFT JOIN accepted a ON true
"""
"""Lock a session: the one that is named, or of those that are free the one with the oldest message."""

RENEW_SESSION: Final[LiteralString] = f"""
WITH {_PLACE}, renewed AS (
    UPDATE pairmq.session s SET locked_until = statement_timestamp() + p.lock_duration FROM place p
    WHERE s.shelf = p.live AND s.name = %(session)b::bytea AND s.lock = %(receiver)s::text
        AND s.locked_until > statement_timestamp()
    RETURNING s.locked_until
), locked AS (
    UPDATE pairmq.lease SET until = renewed.locked_until FROM renewed
    WHERE shelf = (SELECT shelf FROM place) AND {_OWN}
)
SELECT extract(epoch FROM locked_until - statement_timestamp())::float8 FROM renewed
"""

GET_STATE: Final[LiteralString] = f"WITH {_PLACE} " + _OWN_SESSION.format(what="state")

SET_STATE: Final[LiteralString] = f"""
WITH {_PLACE}
UPDATE pairmq.session SET state = %(state)b::bytea
WHERE shelf = (SELECT live FROM place) AND name = %(session)b::bytea AND lock = %(receiver)s::text
    AND locked_until > statement_timestamp()
RETURNING name
"""

RELEASE_SESSION: Final[LiteralString] = f"""
WITH {_PLACE}, gone AS (
    DELETE FROM pairmq.lease WHERE shelf = (SELECT shelf FROM place) AND {_OWN} RETURNING numbers
), counted AS ({_COUNTED}
), own AS (
    SELECT shelf, name, state FROM pairmq.session
    WHERE shelf = (SELECT live FROM place) AND name = %(session)b::bytea AND lock = %(receiver)s::text FOR UPDATE
), forgotten AS (
    DELETE FROM pairmq.session s USING own WHERE s.shelf = own.shelf AND s.name = own.name AND own.state IS NULL
)
UPDATE pairmq.session s SET locked_until = NULL, lock = NULL FROM own
WHERE s.shelf = own.shelf AND s.name = own.name AND own.state IS NOT NULL
"""
"""Release a session; one without a state is forgotten."""

CREATE: Final[LiteralString] = """
WITH made AS (
    INSERT INTO pairmq.entity (path, kind, lock_duration, max_delivery_count, default_time_to_live,
        dead_letter_on_expiration, requires_session, single_consumer, settings)
    VALUES (%(path)s::text, %(kind)s::text, %(lock_duration)s::interval, %(max_delivery_count)s::bigint,
        %(default_time_to_live)s::interval, %(dead_letter_on_expiration)s::boolean, %(requires_session)s::boolean,
        %(single_consumer)s::boolean, %(settings)s::text)
    ON CONFLICT (path) DO NOTHING RETURNING id
), source AS (
    INSERT INTO pairmq.source (entity, subscription) SELECT id, '' FROM made WHERE %(kind)s::text = 'queue'
)
SELECT id FROM made
"""

SUBSCRIBE: Final[LiteralString] = """
WITH topic AS (
    SELECT id FROM pairmq.entity WHERE path = %(path)s::text AND kind = %(kind)s::text
), made AS (
    INSERT INTO pairmq.source (entity, subscription) SELECT id, %(subscription)s::text FROM topic
    ON CONFLICT (entity, subscription) DO NOTHING RETURNING id
)
SELECT made.id FROM topic LEFT JOIN made ON true
"""

SETTINGS: Final[LiteralString] = "SELECT kind, settings FROM pairmq.entity WHERE path = %(path)s::text"

DELETE: Final[LiteralString] = """
WITH gone AS (
    DELETE FROM pairmq.entity WHERE path = %(path)s::text AND kind = %(kind)s::text RETURNING id
), sources AS (
    SELECT s.id FROM pairmq.source s JOIN gone ON gone.id = s.entity
), shelves AS (
    SELECT ARRAY(SELECT id FROM sources UNION ALL SELECT -id FROM sources) AS ids
), messages AS (
    DELETE FROM pairmq.message WHERE ctid = ANY (ARRAY(
        SELECT m.at FROM unnest((SELECT ids FROM shelves)) AS s (id)
        CROSS JOIN LATERAL (SELECT ctid AS at FROM pairmq.message WHERE shelf = s.id OFFSET 0) AS m
    ))
), leases AS (
    DELETE FROM pairmq.lease WHERE shelf = ANY ((SELECT ids FROM shelves)::bigint[])
)
SELECT count(*) FROM gone
"""

LIST: Final[LiteralString] = """
SELECT path, kind FROM pairmq.entity WHERE starts_with(path, %(prefix)s::text) ORDER BY path
"""

COUNTS: Final[LiteralString] = f"""
WITH {_PLACE}, each AS (
    SELECT due_at > statement_timestamp() IS TRUE AS later,
        number IN (
            SELECT unnest(numbers) FROM pairmq.lease
            WHERE shelf = (SELECT shelf FROM place) AND until > statement_timestamp()
        ) AS locked,
        NOT p.reads_dead AND expires_at <= statement_timestamp() IS TRUE AS expired,
        NOT p.reads_dead AND deliveries + (number IN {_LOCKED})::int >= p.max_delivery_count IS TRUE AS worn
    FROM pairmq.message, place p WHERE message.shelf = p.shelf
)
SELECT count(*) FILTER (WHERE NOT later AND NOT locked AND NOT expired AND NOT worn),
    count(*) FILTER (WHERE locked), count(*) FILTER (WHERE later),
    count(*) FILTER (WHERE NOT later AND NOT locked AND (worn OR expired)
        AND (NOT expired OR p.dead_letter_on_expiration))
        + (SELECT count(*) FROM pairmq.message WHERE shelf = -p.live AND NOT p.reads_dead)
FROM place p LEFT JOIN each ON true GROUP BY p.live, p.reads_dead, p.dead_letter_on_expiration
"""

POSITIONS: Final[LiteralString] = f"""
WITH {_PLACE}
SELECT least(
        (SELECT min(number) FROM pairmq.message WHERE shelf = p.shelf AND NOT later),
        (SELECT min(number) FROM pairmq.message WHERE shelf = p.shelf AND later)
    ), (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM pairmq.message_number_seq)
FROM place p
"""

PEEK: Final[LiteralString] = f"""
WITH {_PLACE}, ready AS (
    SELECT * FROM pairmq.message WHERE shelf = (SELECT shelf FROM place) AND NOT later
    ORDER BY number LIMIT %(most)s::bigint
), scheduled AS (
    SELECT * FROM pairmq.message WHERE shelf = (SELECT shelf FROM place) AND due_at IS NOT NULL
    ORDER BY due_at, number LIMIT %(most)s::bigint
), shown AS (
    SELECT * FROM ready UNION ALL SELECT * FROM scheduled
)
SELECT s.number, s.enqueued_at, greatest(s.deliveries + (s.number IN {_LOCKED})::int, 1), s.reason, s.description,
    s.header, s.body
FROM place p LEFT JOIN shown s ON true ORDER BY s.due_at NULLS FIRST, s.number LIMIT %(most)s::bigint
"""

PURGE: Final[LiteralString] = f"""
WITH {_PLACE}, gone AS (
    DELETE FROM pairmq.message WHERE shelf = (SELECT shelf FROM place) RETURNING 1
)
SELECT (SELECT count(*) FROM gone) FROM place
"""

PROBE: Final[LiteralString] = """
INSERT INTO pairmq.message (shelf, header, body)
SELECT 0, '{}', %(body)b::bytea FROM pairmq.entity WHERE path = %(path)s::text AND kind = %(kind)s::text
RETURNING number
"""
PROBED: Final[LiteralString] = "DELETE FROM pairmq.message WHERE shelf = 0"
"""Write a message where no consumer looks, and remove it in the same transaction."""

CHECK: Final[LiteralString] = "SELECT version FROM pairmq.version"

RISKS: Final[LiteralString] = """
SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')
"""
