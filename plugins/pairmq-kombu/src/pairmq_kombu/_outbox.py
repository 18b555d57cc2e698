"""Publishing in a transaction of the application's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_connection: ContextVar[Any] = ContextVar("pairmq_kombu_outbox", default=None)


@contextmanager
def outbox(connection: Any) -> Iterator[None]:
    """Store what this thread publishes in the block, through the pair, in the transaction that a connection has open.

    Tasks sent there begin once the transaction is committed, and never existed if it is rolled back; nothing is
    committed here. Needs a database as the secondary of the pair, which is where the connection leads to. What the pair
    can't carry is refused, so that nothing but events of monitoring leaves before the commit.

    Args:
        connection: a connection of psycopg 3 or sqlite3, a ``Connection`` or ``Session`` of SQLAlchemy 2, or Django's
            ``connection``.
    """
    token = _connection.set(connection)
    try:
        yield
    finally:
        _connection.reset(token)


def stored_through() -> Any:
    """The connection of the `outbox` block that this is called in; None outside of one."""
    return _connection.get()
