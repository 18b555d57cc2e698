"""What can be done to a PostgreSQL server in a chaos run (`pairmq.testing.chaos`)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, LiteralString

import psycopg
from psycopg import sql

from pairmq.testing.chaos.broker import KILL, PAUSE, FaultKind, ServerBroker
from pairmq_postgres.testing import GRANTS, PostgresServer

_HOST = "127.0.0.1"
_OTHER_PASSWORD = "changed by an operator"  # noqa: S105  # of a server that lives for one run
_REVOKE: LiteralString = "REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pairmq FROM {}"
_COUNT: LiteralString = """
SELECT count(*) FROM pairmq.message JOIN pairmq.source ON shelf = source.id JOIN pairmq.entity ON entity = entity.id
WHERE path = %s AND subscription = ''
"""
_DROP: LiteralString = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"


class PostgresChaos(ServerBroker):
    """A PostgreSQL server that writes every confirmed transaction to disk, with a role for the clients.

    Its own faults: ``read-only`` (as a standby), ``locked`` (another transaction has the table of messages: nothing
    responds), ``drop-clients`` (ended by an operator), ``password`` (changed, and all clients are disconnected),
    ``permissions`` (to write, revoked), ``user-limit`` (the role may open no connection, and all clients are
    disconnected).
    """

    faults: ClassVar[tuple[FaultKind, ...]] = (
        KILL,
        PAUSE,
        FaultKind("read-only", 0.2, 4.0),
        FaultKind("locked", 0.2, 4.0),
        FaultKind("drop-clients", 0.1, 0.1),
        FaultKind("password", 0.2, 3.0),
        FaultKind("permissions", 0.2, 3.0),
        FaultKind("user-limit", 0.2, 3.0),
    )

    def __init__(self) -> None:
        self._server = PostgresServer()
        self._locking: psycopg.Connection[Any] | None = None
        read_only = self._server.set_read_only
        super().__init__(
            self._server,
            {
                "locked": (self._lock, self._unlock),
                "read-only": (partial(read_only, True), partial(read_only, False)),
                "password": (self._change_password, partial(self._set_password, self._server.password)),
                "permissions": (partial(self._change, _REVOKE), partial(self._change, *GRANTS)),
                "user-limit": (self._forbid_connections, partial(self._change, "ALTER ROLE {} CONNECTION LIMIT -1")),
                "drop-clients": (self._drop, lambda: None),
            },
        )

    def count(self, queue: str) -> int:
        """The rows of the queue, scheduled and locked ones too."""
        return _count(self._server, queue)

    def _lock(self) -> None:
        self._locking = psycopg.connect(**self._server.parameters())
        self._locking.execute("LOCK TABLE pairmq.message")

    def _unlock(self) -> None:
        if self._locking is not None:
            self._locking.close()
            self._locking = None

    def _change_password(self) -> None:
        self._set_password(_OTHER_PASSWORD)
        self._drop()

    def _forbid_connections(self) -> None:
        self._change("ALTER ROLE {} CONNECTION LIMIT 0")
        self._drop()

    def _drop(self) -> None:
        self._run(_DROP, self._server.role)

    def _set_password(self, password: str) -> None:
        self._run(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(self._server.role), password))

    def _change(self, *statements: LiteralString) -> None:
        for statement in statements:
            self._run(sql.SQL(statement).format(sql.Identifier(self._server.role)))

    def _run(self, statement: LiteralString | sql.Composed, *values: str) -> psycopg.Cursor[Any]:
        with psycopg.connect(**self._server.parameters(), autocommit=True) as connection:
            return connection.execute(statement, values or None)


class StandbyChaos(ServerBroker):
    """Two PostgreSQL servers, of which one takes writes and waits at each commit for the other, its standby.

    Its faults strike the one that takes writes, but for ``kill-standby``: no commit is confirmed meanwhile.
    ``take-over``: it is killed, the standby is promoted, and what was killed becomes the standby at the end.
    """

    faults: ClassVar[tuple[FaultKind, ...]] = (
        KILL,
        PAUSE,
        FaultKind("kill-standby", 0.2, 4.0),
        FaultKind("take-over", 0.5, 5.0),
    )

    def __init__(self) -> None:
        self._writer = PostgresServer()
        self._standby = PostgresServer(standby_of=self._writer)
        hosts = f"{_HOST}:{self._writer.port},{_HOST}:{self._standby.port}"
        self._url = self._writer.url.replace(f"{_HOST}:{self._writer.port}", hosts)
        super().__init__(self._writer)

    @property
    def url(self) -> str:
        return self._url

    def start(self) -> None:
        self._writer.start()
        self._standby.start()
        self._set_synchronous("*")

    def apply(self, fault: str) -> None:
        match fault:
            case "kill-standby":
                self._standby.kill()
            case "take-over":
                self._writer.kill()
                self._standby.promote()
                self._writer, self._standby = self._standby, self._writer
                self._process = self._writer
                self._set_synchronous("")
                self._standby.follow(self._writer)
            case _:
                super().apply(fault)

    def cure(self, fault: str) -> None:
        super().cure(fault)
        self.start()

    def count(self, queue: str) -> int:
        """The rows of the queue, scheduled and locked ones too."""
        return _count(self._writer, queue)

    def close(self) -> None:
        self._standby.close()
        super().close()

    def _set_synchronous(self, names: LiteralString) -> None:
        self._writer.query(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")


def _count(server: PostgresServer, queue: str) -> int:
    with psycopg.connect(**server.parameters(), autocommit=True) as connection:
        return int(connection.execute(_COUNT, (queue,)).fetchall()[0][0])


# The names by which `pairmq.testing.chaos` makes them: ``postgres``, ``postgres:standby``.
chaos_broker, standby = PostgresChaos, StandbyChaos
