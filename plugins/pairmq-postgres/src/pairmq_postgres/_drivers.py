"""The drivers of callers' connections: psycopg 3, psycopg2 and asyncpg. The last two are used, not imported: a program
that has a connection of theirs has them.
"""

from __future__ import annotations

import importlib
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

import psycopg
from psycopg import waiting
from psycopg.adapt import PyFormat
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8

from pairmq.transport import unusable
from pairmq_postgres import _sql

_UNFIT: dict[int, str] = {
    TransactionStatus.INERROR: "its transaction has failed",
    TransactionStatus.ACTIVE: "it is busy with another statement",
    TransactionStatus.UNKNOWN: "it is closed",
}
_PIPELINE = "it is in pipeline mode, in which it is not known yet what a statement did: end the pipeline first"
_COMMITS = "it commits each statement by itself: begin a transaction first"
_PARAMETER = re.compile(r"%\((\w+)\)[sb]|%%")
FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_NAME, _BINARY = b"pairmq_store_one", [Format.BINARY] * 6
_TYPES = (25, 17, 16, 20, 0, 0)  # those of text, bytea, boolean, bigint, and two that psycopg leaves open


class Shelf(NamedTuple):
    """What statements have to know of a queue, in the order of the parameters of `_sql.STORE_ONE`."""

    in_order: bool
    shelf: int
    made: str
    wake: str | None


class Driver(ABC):
    """Runs statements, as `pairmq_postgres._sql` has them, in the transaction of a connection."""

    @abstractmethod
    def unfit(self, connection: Any) -> str | None:
        """Why a connection has no transaction that could be committed; None if it has one, or begins one."""

    @abstractmethod
    async def run(self, connection: Any, statement: str, parameters: dict[str, Any]) -> int:
        """Run a statement, and return how many rows it returned or stored. A blocking connection is not awaited."""

    async def store_one(self, connection: Any, shelf: Shelf, header: str, body: bytes) -> int:
        """Store one message; 0 if the queue does not exist."""
        return await self.run(connection, _sql.STORE_ONE, {**shelf._asdict(), "header": header, "body": body})

    @abstractmethod
    async def row(self, connection: Any, statement: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        """Run a statement that returns one row, or none."""


class _Psycopg(Driver):
    def __init__(self) -> None:
        self._prepared: dict[ref[Any], bool] = {}  # connections that have the statement `_NAME`, or can't have it
        self._text = numbered(_sql.STORE_ONE)[0].encode()

    def unfit(self, connection: Any) -> str | None:
        pgconn = connection.pgconn
        status = pgconn.transaction_status
        if status == TransactionStatus.IDLE and connection.autocommit:
            return _COMMITS
        return _PIPELINE if pgconn.pipeline_status != PipelineStatus.OFF else _UNFIT.get(status)

    async def store_one(self, connection: Any, shelf: Shelf, header: str, body: bytes) -> int:
        """Store without a cursor, which costs as much as a quarter of a send; if the transaction is not open yet, begin
        it in the same round trip, where psycopg takes two."""
        if (encoded := _encoded(shelf)) and (name := self._statement(connection)):
            exchange = self._exchange(connection, name, [header.encode(), body, *encoded])
            try:
                if isinstance(connection, psycopg.Connection):
                    with connection.lock:
                        stored = connection.wait(exchange)
                else:
                    async with connection.lock:
                        stored = await connection.wait(exchange)
            except (DuplicatePreparedStatement, InvalidSqlStatementName) as error:
                if name != _NAME:
                    raise
                # `DEALLOCATE ALL`, which psycopg itself does after a rollback; or a proxy that changes servers.
                self._prepared.pop(ref(connection), None)
                if isinstance(error, DuplicatePreparedStatement):
                    self._prepare(connection, possible=False)
                ended = connection.rollback()  # nothing else is in it
                if ended is not None:
                    await ended
            else:
                if stored is not None:
                    return stored
        values = {**shelf._asdict(), "shelf": Int8(shelf.shelf), "header": header, "body": body}
        return await self.run(connection, _sql.STORE_ONE, values)

    async def run(self, connection: Any, statement: Any, parameters: dict[str, Any]) -> int:
        count: int = (await self._executed(connection, statement, parameters)).rowcount
        return count

    def _statement(self, connection: Any) -> bytes | None:
        """The prepared statement to store one message with; `_NAME` if the transaction begins with it."""
        pgconn = connection.pgconn
        if pgconn.pipeline_status != PipelineStatus.OFF or connection.prepare_threshold is None:
            return None
        if pgconn.transaction_status == TransactionStatus.INTRANS:
            # A statement that is missing would fail the caller's transaction. So it is the one that psycopg prepared
            # for `run`, and would use there: its private parts know what was lost, as by a rollback.
            try:
                found: bytes | None = connection._prepared._names.get((self._text, _TYPES))
            except AttributeError:
                return None
            return found
        plain = connection.isolation_level is connection.read_only is connection.deferrable is None  # just ``BEGIN``
        return _NAME if plain and self._prepared.get(ref(connection), True) else None

    def _exchange(self, connection: Any, name: bytes, values: list[bytes | None]) -> Generator[Any, Any, int | None]:
        """Store by a prepared statement; None if another task has begun or ended a transaction meanwhile."""
        if self._statement(connection) != name:
            return None
        pgconn, prepares = connection.pgconn, False
        pgconn.enter_pipeline_mode()
        if name == _NAME:
            pgconn.send_query_params(b"BEGIN", None)
            prepares = ref(connection) not in self._prepared
            if prepares:
                pgconn.send_prepare(_NAME, self._text)
        pgconn.send_query_prepared(name, values, _BINARY, Format.BINARY)
        pgconn.pipeline_sync()
        results = yield from answers(pgconn)
        for result in results:
            if result.status not in FINE:
                raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
        if prepares:
            self._prepare(connection, possible=True)
        return results[-1].command_tuples

    def _prepare(self, connection: Any, *, possible: bool) -> None:
        """Remember that a connection has the statement, or can't have it."""
        self._prepared[ref(connection, lambda gone: self._prepared.pop(gone, None))] = possible

    async def row(self, connection: Any, statement: Any, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        cursor = await self._executed(connection, statement, parameters)
        found = cursor.fetchone()
        return (await found) if isinstance(connection, psycopg.AsyncConnection) else found  # type: ignore[no-any-return]

    async def _executed(self, connection: Any, statement: Any, parameters: dict[str, Any]) -> Any:
        # Cursors of the driver's own kind: the caller's may put parameters into the text, or make anything of a row.
        # Such a cursor has all of its answer, and nothing on the server that would have to be closed.
        if isinstance(connection, psycopg.Connection):
            return psycopg.Cursor(connection, row_factory=tuple_row).execute(statement, parameters, binary=True)
        return await psycopg.AsyncCursor(connection, row_factory=tuple_row).execute(statement, parameters, binary=True)


class _Psycopg2(Driver):
    def unfit(self, connection: Any) -> str | None:
        if connection.closed:
            return _UNFIT[TransactionStatus.UNKNOWN]
        if connection.async_:
            return "it is one of psycopg2's asynchronous ones, which have no transactions"
        status = connection.get_transaction_status()
        if status == TransactionStatus.IDLE and connection.autocommit:
            return _COMMITS
        return _UNFIT.get(status)

    async def run(self, connection: Any, statement: str, parameters: dict[str, Any]) -> int:
        count: int = self._executed(connection, statement, parameters).rowcount
        return count

    async def row(self, connection: Any, statement: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self._executed(connection, statement, parameters).fetchone()
        return found

    def _executed(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Any:
        plain = importlib.import_module("psycopg2.extensions").cursor
        cursor = connection.cursor(cursor_factory=plain)
        cursor.execute(_without_formats(statement), parameters)
        return cursor


class _Asyncpg(Driver):
    def unfit(self, connection: Any) -> str | None:
        if connection.is_closed():
            return _UNFIT[TransactionStatus.UNKNOWN]
        return None if connection.is_in_transaction() else _COMMITS

    async def run(self, connection: Any, statement: str, parameters: dict[str, Any]) -> int:
        if statement.startswith("\nINSERT") and "RETURNING" not in statement:
            statement += "RETURNING 1"  # it counts what is returned, not what is stored
        return len(await self._fetched(connection, statement, parameters))

    async def row(self, connection: Any, statement: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        rows = await self._fetched(connection, statement, parameters)
        return tuple(rows[0]) if rows else None

    async def _fetched(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Sequence[Any]:
        text, names = numbered(statement)
        found: Sequence[Any] = await connection.fetch(text, *[parameters[name] for name in names])
        return found


@lru_cache(maxsize=256)
def _encoded(shelf: Shelf) -> tuple[bytes | None, ...] | None:
    """A queue's values in PostgreSQL's binary format; None where they are not ASCII: a connection may have any
    encoding."""
    if shelf.wake is not None and not shelf.wake.isascii():
        return None
    wake = None if shelf.wake is None else shelf.wake.encode()
    return struct.pack("?", shelf.in_order), struct.pack(">q", shelf.shelf), shelf.made.encode(), wake


def answers(pgconn: PGconn) -> Generator[int, int, list[PGresult]]:
    """Send what was written in pipeline mode, and end that mode; the results of all of it."""
    while pgconn.flush():
        if ((yield waiting.WAIT_RW) or 0) & waiting.READY_R:
            pgconn.consume_input()
    found: list[PGresult] = []
    try:
        while True:
            while pgconn.is_busy():
                yield waiting.WAIT_R
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of one statement's results
                if pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                break
            else:
                found.append(result)
    except psycopg.OperationalError:
        if all(result.status in FINE for result in found):
            raise
        return found  # the server has said why before it hung up
    pgconn.exit_pipeline_mode()
    return found


@lru_cache(maxsize=16)
def _without_formats(statement: str) -> str:
    """For psycopg2, which puts values into the text."""
    return _PARAMETER.sub(lambda found: f"%({found[1]})s" if found[1] else "%%", statement)


@lru_cache(maxsize=64)
def numbered(statement: str) -> tuple[str, dict[str, PyFormat]]:
    """A statement with ``$1`` for parameters, and their names in that order, with the format that is asked for."""
    names: dict[str, PyFormat] = {}

    def place(found: re.Match[str]) -> str:
        if not found[1]:
            return "%"
        names.setdefault(found[1], PyFormat.BINARY if found[0].endswith("b") else PyFormat.AUTO)
        return f"${[*names].index(found[1]) + 1}"

    return _PARAMETER.sub(place, statement), names


_PSYCOPG, _OTHERS = _Psycopg(), {"psycopg2": _Psycopg2(), "asyncpg": _Asyncpg()}


def driver_of(connection: object) -> Driver:
    """Find the driver of a connection; one that cannot be used, as in a failed transaction, is a `TransportError`."""
    kind: Any = type(connection)
    driver = _known(kind)
    if driver is None:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} is not a connection of psycopg 3, psycopg2 or asyncpg: give one of "
            "these, or one of SQLAlchemy or Django over it"
        )
    try:
        unfit = driver.unfit(connection)
    except Exception as error:
        if not _is_others(error):
            raise
        raise unusable(str(error)) from error  # asyncpg: it was returned to its pool
    if unfit is not None:
        raise unusable(unfit)
    return driver


@lru_cache(maxsize=64)
def _known(kind: type) -> Driver | None:
    if issubclass(kind, psycopg.Connection | psycopg.AsyncConnection):
        return _PSYCOPG
    if not (hasattr(kind, "is_in_transaction") or hasattr(kind, "get_transaction_status")):
        return None  # a pool or a cursor
    return next((_OTHERS[root] for root in map(_root, kind.__mro__) if root in _OTHERS), None)


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_others(error: BaseException) -> bool:
    return any(_root(kind) in _OTHERS for kind in type(error).__mro__)


def translated(error: Exception) -> Exception:
    """The error of psycopg 3 that says the same as one of another driver; any other as it is."""
    if isinstance(error, psycopg.errors.InFailedSqlTransaction):
        return unusable(_UNFIT[TransactionStatus.INERROR])
    if not _is_others(error):
        return error
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and type(error).__name__ == "InterfaceError":  # it is busy, closed, or its pool's again
        return unusable(str(error))
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(state) if state else psycopg.OperationalError
    except KeyError:
        kind = psycopg.DatabaseError
    found = kind(str(error))
    if state:
        found.sqlstate = state
    found.__cause__ = error
    return translated(found)
