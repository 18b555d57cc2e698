"""The plans of the statements: each finds its messages by an index, however full or empty the table is."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pairmq_postgres import _sql, _url
from pairmq_postgres._drivers import numbered
from pairmq_postgres.testing import EMPTY, PostgresServer

pytestmark = pytest.mark.real_server

STATEMENTS = {
    name: text
    for name, text in vars(_sql).items()
    if name.isupper() and not name.startswith("_") and name not in ("RISKS", "CHECK", "NOTIFY", "LIST")
}
PARAMETERS: dict[str, Any] = {
    "path": "orders-7",
    "kind": "queue",
    "subscription": "",
    "sign": 1,
    "receiver": "receiver:",
    "locks": ["receiver:1"],
    "over": ["receiver:1"],
    "own": "receiver:1:5",
    "shelf": 1,
    "number": 5,
    "numbers": [5],
    "starts": [1],
    "worn": 5,
    "most": 100,
    "most_bytes": 1_000_000,
    "session": b"session-5",
    "reason": "",
    "description": "",
    "state": b"",
    "body": b"",
    "prefix": "",
    "settings": "{}",
    "headers": ["{}"],
    "bodies": [b""],
    "header": "{}",
    "due_at": [None],
    "lives": [None],
    "sessions": [None],
    "lock_duration": datetime.timedelta(seconds=60),
    "max_delivery_count": 10,
    "default_time_to_live": None,
    "dead_letter_on_expiration": True,
    "requires_session": False,
    "single_consumer": False,
    "made": "5",
    "in_order": False,
    "wake": "orders-7",
    "key": "key-5",
    "window": datetime.timedelta(days=1),
}
FILL = (
    """
    INSERT INTO pairmq.entity (path, kind, lock_duration, dead_letter_on_expiration, requires_session, single_consumer,
        settings)
    SELECT 'orders-' || n, 'queue', '60 s', true, n % 3 = 0, n % 5 = 0, '{}' FROM generate_series(1, 20) AS n
    """,
    "INSERT INTO pairmq.source (entity, subscription) SELECT id, '' FROM pairmq.entity",
    """
    INSERT INTO pairmq.message (shelf, due_at, expires_at, session, header, body)
    SELECT s.id, CASE WHEN n % 7 = 0 THEN now() + interval '1 hour' END,
        CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END,
        CASE WHEN s.id % 3 = 0 THEN convert_to('session-' || n % 50, 'utf8') END, '{}', 'hello'
    FROM pairmq.source s, generate_series(1, 1000) AS n
    """,
    """
    INSERT INTO pairmq.session (shelf, name)
    SELECT s.id, convert_to('session-' || n, 'utf8') FROM pairmq.source s, generate_series(1, 50) AS n
    """,
    """
    INSERT INTO pairmq.lease (shelf, name, until, numbers)
    SELECT s.id, 'receiver-' || n, now() + interval '1 min', ARRAY[n * 10, n * 10 + 1]
    FROM pairmq.source s, generate_series(1, 50) AS n
    """,
    "INSERT INTO pairmq.inbox SELECT 'key-' || n, now() + n * interval '1 s' FROM generate_series(-100, 9000) AS n",
    "ANALYZE",
)


@pytest.fixture(scope="module")
def empty(running: PostgresServer) -> PostgresServer:
    running.start()
    running.query(EMPTY, "ANALYZE")
    return running


@pytest.fixture(scope="module")
def full(empty: PostgresServer) -> Iterator[PostgresServer]:
    empty.query(*FILL)
    yield empty
    empty.query(EMPTY, "TRUNCATE pairmq.inbox", "ANALYZE")


OWN = [f"SET {name} = {value}" for name, value in re.findall(r"-c (\w+)=(\w+)(?= |$)", _url._SETTINGS)]
"""The settings of a transport's connections."""


def plan(server: PostgresServer, statement: str, *settings: str) -> list[str]:
    """The lines of a plan, of a statement that is prepared, as on a transport's connections."""
    text, names = numbered(statement)
    given = f" ({', '.join(f'%({name})s' for name in names)})" if names else ""
    with psycopg.connect(**server.parameters(), cursor_factory=psycopg.ClientCursor) as connection:
        for each in (*settings, f"PREPARE planned AS {text}"):
            connection.execute(each)  # type: ignore[call-overload]
        explain: Any = f"EXPLAIN EXECUTE planned{given}"
        rows = connection.execute(explain, PARAMETERS).fetchall()
        connection.rollback()
    return [line for (line,) in rows]


def scanned(server: PostgresServer, statement: str, *settings: str, tables: str = "message|session|inbox") -> list[str]:
    """The lines of a plan that read all of a table."""
    return [line for line in plan(server, statement, *settings) if re.search(rf"Seq Scan on ({tables})\b", line)]


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_reads_no_whole_table_when_it_was_planned_for_an_empty_one(empty, name):
    assert scanned(empty, STATEMENTS[name], *OWN, tables="message|lease|session|inbox") == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_reads_no_whole_table_when_it_is_full(full, name):
    """By the planner's own choice, as behind PgBouncer; of leases there are as many as receives whose messages wait."""
    assert scanned(full, STATEMENTS[name]) == []
    assert scanned(full, STATEMENTS[name], *OWN) == []


def test_receive_reads_no_more_than_it_takes_when_nothing_is_known_of_the_table(server):
    """Without statistics, as of a queue that has just been filled."""
    server.query(*FILL[:3])
    take, sweep = (plan(server, statement, *OWN) for statement in (_sql.TAKE, _sql.SWEEP))
    assert any("Index Scan using message_pkey on message m " in line for line in take)
    assert any("Index Scan using message_expiring on message m " in line for line in sweep)
    assert not [line for line in (*take, *sweep) if "Bitmap" in line or "Sort Key: m." in line]
