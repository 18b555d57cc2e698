"""Connections, made to the one of several hosts that takes writes; arrays and long answers without detours."""

from __future__ import annotations

import asyncio
import select
import struct
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection, abc, waiting
from psycopg.adapt import Dumper, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult

from pairmq.transport import dial, keep_from_children, lookup, start_task
from pairmq_postgres._drivers import FINE, answers, numbered
from pairmq_postgres._errors import NotSent
from pairmq_postgres._url import PostgresUrl, is_directory

_AT_ONCE = 64  # reads of one answer, of some KiB each, without a turn for others
_SHORT, _GATHERS = 4, 0.0005  # waits for more of an answer that begin at once, and s before later ones
_EVENTS: dict[int, int] = {
    waiting.WAIT_R: select.POLLIN,
    waiting.WAIT_W: select.POLLOUT,
    waiting.WAIT_RW: select.POLLIN | select.POLLOUT,
}
_OTHERS = 1.0  # s for which hosts may take longer to answer than the first one that takes writes
# A server whose client is gone runs its statement on: where the table is locked, as by a migration, one after the other
# would hold a connection until the server has none for anyone. With this it notices.
_CHECK: LiteralString = "client_connection_check_interval=1000"  # ms
_CHECKS_SINCE = 140000
# The timeline is one more after each promotion. `pg_control_checkpoint()` knows it only a while later.
_HISTORY = """
    SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
    FROM pg_control_system()
"""


Rows = list[tuple[Any, ...]]
Statement = tuple[Any, Mapping[str, Any]]
_Prepared = tuple[str, tuple[int, ...]]  # a statement with types for its parameters


class Array:
    """An array, of no None, ready to be sent: psycopg makes one value after the other, in Python."""

    __slots__ = ("values",)
    oid: ClassVar[int]

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def encoded(self) -> Sequence[bytes]:
        """The values in PostgreSQL's binary format."""
        return self.values


class Texts(Array):
    """``text[]``."""

    oid = 25

    def encoded(self) -> Sequence[bytes]:
        return [value.encode() for value in self.values]


class Blobs(Array):
    """``bytea[]``."""

    oid = 17


class Numbers(Array):
    """``bigint[]``."""

    oid = 20

    def encoded(self) -> Sequence[bytes]:
        return list(map(_NUMBER.pack, self.values))


_NUMBER, _LENGTH, _ARRAY = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">iiIii")
_ARRAYS = {25: 1009, 17: 1001, 20: 1016}


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, context: abc.AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self.oid = _ARRAYS[cls.oid]  # type: ignore[attr-defined]

    def dump(self, obj: Array) -> bytes:
        values = obj.encoded()
        if not values:
            return _ARRAY.pack(0, 0, obj.oid, 0, 1)[:12]
        parts = [_ARRAY.pack(1, 0, obj.oid, len(values), 1)]
        length = _LENGTH.pack
        for value in values:
            parts += (length(len(value)), value)
        return b"".join(parts)


class _Unanswered(NamedTuple):
    """A pipelined call: what its results are of, and who waits for them."""

    awaited: deque[_Prepared | None]
    transformer: abc.Transformer
    answer: asyncio.Future[list[Rows]]


class Connection(AsyncConnection[tuple[Any, ...]]):
    """Sends what belongs together at once, and waits without polling."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transformer: abc.Transformer | None = None  # a new one would find each type's way anew
        self._names: dict[_Prepared | None, bytes] = {}
        self._numbers = count()
        self.users = 0
        """Calls that have it: a distant server's may be several."""
        self._unanswered: deque[_Unanswered] = deque()
        self._results: list[PGresult] = []  # of the first of them
        self._watched = -1

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run statements in one transaction, and return the rows of each.

        psycopg's pipeline sends each by itself, which wakes the server; its cursors describe each column of an answer.
        """
        begins = len(statements) > 1 and self.prepare_threshold is None  # else the settings say so
        if begins:
            statements = [("BEGIN ISOLATION LEVEL READ COMMITTED", {}), *statements, ("COMMIT", {})]
        found: list[Rows] = await self.wait(self._exchange(statements))
        return found[1:-1] if begins else found

    def _exchange(self, statements: Sequence[Statement]) -> Generator[int, int, list[Rows]]:
        self._transformer = transformer = self._transformer or Transformer(self)
        awaited = self._write(statements, transformer)
        return self._read((yield from answers(self.pgconn)), awaited, transformer)

    async def run_pipelined(self, statements: Sequence[Statement]) -> list[Rows]:
        """Do the same behind calls that have no answer yet, as the server answers in order; that of one that is
        cancelled is dropped."""
        loop = asyncio.get_running_loop()
        self._transformer = transformer = self._transformer or Transformer(self)
        call = _Unanswered(self._write(statements, transformer), transformer, loop.create_future())
        if self._watched < 0:
            self._watched = self.pgconn.socket
            loop.add_reader(self._watched, self._advance)
        self._unanswered.append(call)
        self._advance()
        return await call.answer

    def _advance(self) -> None:
        """Write what the socket takes, and hand out the answers that have come."""
        loop, pgconn = asyncio.get_running_loop(), self.pgconn
        try:
            if pgconn.flush():
                loop.add_writer(self._watched, self._advance)
            else:
                loop.remove_writer(self._watched)
            pgconn.consume_input()
            while self._unanswered and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:  # the end of one statement's results
                    if pgconn.status == ConnStatus.BAD:
                        raise psycopg.OperationalError("the connection is lost")
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    self._answer()
                else:
                    self._results.append(result)
            if not self._unanswered:
                self._watch_no_longer()
                pgconn.exit_pipeline_mode()
        except psycopg.OperationalError as error:
            if any(result.status not in FINE for result in self._results):
                self._answer()  # the server has said why before it hung up
            self.drop(str(error))

    def _answer(self) -> None:
        call, results = self._unanswered.popleft(), self._results
        self._results = []
        try:
            rows = self._read(results, call.awaited, call.transformer)
        except Exception as error:
            if not call.answer.done():
                call.answer.set_exception(error)
        else:
            if not call.answer.done():
                call.answer.set_result(rows)

    def drop(self, why: str = "the connection is lost") -> None:
        """Close it at once; calls that have no answer fail."""
        self._watch_no_longer()  # before its number is that of another socket
        self.pgconn.finish()
        while self._unanswered:
            answer = self._unanswered.popleft().answer
            if not answer.done():
                answer.set_exception(psycopg.OperationalError(why))

    def _watch_no_longer(self) -> None:
        if self._watched >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._watched)
            loop.remove_writer(self._watched)
            self._watched = -1

    def _read(
        self, results: Sequence[PGresult], awaited: deque[_Prepared | None], transformer: abc.Transformer
    ) -> list[Rows]:
        """The rows of each statement, or the failure of the first that failed."""
        found: list[Rows] = []
        failed: psycopg.Error | None = None
        for result in results:
            prepared = awaited.popleft() if awaited else None
            if result.status not in FINE:
                failed = failed or psycopg.errors.error_from_result(result)
                self._names.pop(prepared, None)
            elif prepared is None:
                transformer.set_pgresult(result)
                found.append(transformer.load_rows(0, result.ntuples, tuple))
                transformer.set_pgresult(None)
        if failed is not None:
            raise failed
        return found

    def _write(self, statements: Sequence[Statement], transformer: abc.Transformer) -> deque[_Prepared | None]:
        """Write statements for libpq to send; return what each answer is of: a statement to be prepared, or None."""
        written: list[tuple[_Prepared, Sequence[Any], Sequence[Any]]] = []
        for statement, parameters in statements:
            text, formats = numbered(statement)
            values = transformer.dump_sequence([parameters[name] for name in formats], [*formats.values()])
            written.append(((text, transformer.types or ()), values, transformer.formats or []))  # a list: psycopg 3.2
        awaited: deque[_Prepared | None] = deque()
        self.pgconn.enter_pipeline_mode()
        for prepared, values, as_ in written:
            text, types = prepared
            if self.prepare_threshold is None:
                self.pgconn.send_query_params(text.encode(), values, types, as_, Format.BINARY)
            else:
                if prepared not in self._names:
                    self._names[prepared] = b"pairmq_%d" % next(self._numbers)
                    self.pgconn.send_prepare(self._names[prepared], text.encode(), types)
                    awaited.append(prepared)
                self.pgconn.send_query_prepared(self._names[prepared], values, as_, Format.BINARY)
            awaited.append(None)
        self.pgconn.pipeline_sync()
        return awaited

    # psycopg's own wakes at an interval, for Ctrl-C, and for each of the 8 KiB that a server sends at a time.
    async def wait(self, gen: Any, *_: Any, **options: Any) -> Any:
        if options.get("timeout") is not None:  # of `notifies`, which is not used so
            return await super().wait(gen, **options)
        try:
            return await _answer(gen, self.pgconn.socket)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


async def _answer(gen: Any, fileno: int) -> Any:
    """Run one of psycopg's generators to its end; a long answer gathers for a moment before more of it is read."""
    loop = asyncio.get_running_loop()
    reads = waits = 0
    try:
        wanted = next(gen)
        while True:
            reads += 1
            if reads % _AT_ONCE == 0:  # others have their turn
                await asyncio.sleep(0)
            ready = _ready_now(fileno, wanted)
            if not ready:
                waits += 1
                if waits > _SHORT and wanted == waiting.WAIT_R:
                    await asyncio.sleep(_GATHERS)
                await _readiness(loop, fileno, wanted)
                ready = _ready_now(fileno, wanted)
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def _ready_now(fileno: int, wanted: int) -> int:
    """Which of what a generator waits for, to read or to write, is possible; an error is found by either."""
    poll = select.poll()
    poll.register(fileno, _EVENTS[wanted])
    for _, events in poll.poll(0):
        return wanted & (
            (waiting.READY_R if events & ~select.POLLOUT else 0) | (waiting.READY_W if events & ~select.POLLIN else 0)
        )
    return 0


async def _readiness(loop: asyncio.AbstractEventLoop, fileno: int, wanted: int) -> None:
    found: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not found.done():
            found.set_result(None)

    if wanted & waiting.WAIT_R:
        loop.add_reader(fileno, ready)
    if wanted & waiting.WAIT_W:
        loop.add_writer(fileno, ready)
    try:
        await found
    finally:
        loop.remove_reader(fileno)
        loop.remove_writer(fileno)


class Hosts:
    """The hosts of one URL, of which one takes writes: after a failover another one than before.

    Once connected, it stays with that host until `look_again`. Then it asks all of them side by side, so that one that
    does not answer delays nothing for long. A primary that was replaced by a promotion and was started again by mistake
    takes writes, too, which are lost once it is set up as a standby: it is passed over.
    """

    def __init__(self, url: PostgresUrl) -> None:
        self._url = url
        self._chosen: tuple[str, int] | None = None
        self._latest: dict[int, int] = {}
        self._checks = False  # whether the server is known to have the setting `_CHECK`

    def look_again(self) -> None:
        """Ask all hosts at the next connection."""
        self._chosen = None

    async def connect(self) -> Connection:
        """Connect to the host that takes writes. Raises `NotSent`: none does."""
        try:
            if len(self._url.hosts) == 1:
                return await self._to(self._url.hosts[0])
            if self._chosen is not None:
                return await self._to(self._chosen)
            self._chosen, connection = await self._find()
        except (psycopg.Error, OSError) as error:
            self.look_again()
            raise NotSent(error) from None
        return connection

    async def _to(self, host: tuple[str, int]) -> Connection:
        prepared = 0 if self._url.listen else None
        where = self._url.parameters(host)
        if not is_directory(host[0]):
            where |= await self._addresses(host)
        if self._checks:
            where["options"] += f" -c {_CHECK}"
        try:
            made = await Connection.connect(**where, autocommit=True, prepare_threshold=prepared)
        except psycopg.Error:
            self._checks = False  # it may be an older server now
            raise
        except asyncio.CancelledError as cancelled:
            # psycopg's frames have the connection, and a task that is kept would keep them: it is closed with them.
            raise cancelled.with_traceback(None) from None
        keep_from_children(made, lambda connection: connection)
        if self._url.listen and not self._checks and made.info.server_version >= _CHECKS_SINCE:
            try:
                await made.execute(f"SET {_CHECK}")
                self._checks = True
            except psycopg.Error:  # an operating system that can't do it
                pass
        for kind in (Texts, Blobs, Numbers):
            made.adapters.register_dumper(kind, _ArrayDumper)
        return made

    async def _addresses(self, host: tuple[str, int]) -> dict[str, str]:
        """The addresses of a name, first the one that answers where it has several: psycopg waits for each in turn."""
        async with asyncio.timeout(self._url.connect_timeout):
            every = list(dict.fromkeys(address[0] for *_, address in await lookup(*host)))
            if not every:
                return {}
            if len(every) > 1 and (connection := await dial(*host)) is not None:
                every = list(dict.fromkeys((connection.getpeername()[0], *every)))
                connection.close()
        return {"host": ",".join([host[0]] * len(every)), "hostaddr": ",".join(map(str, every))}

    async def _find(self) -> tuple[tuple[str, int], Connection]:
        tasks = {host: start_task(self._ask(host)) for host in self._url.hosts}
        try:
            pending, patience = set(tasks.values()), None
            while pending:
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if any(task.exception() is None for task in done):
                    patience = _OTHERS
            ended = {host: task for host, task in tasks.items() if task.done()}
            writable = {host: task.result() for host, task in ended.items() if task.exception() is None}
            for answer in writable.values():
                self._latest[answer.system] = max(self._latest.get(answer.system, 0), answer.timeline)
            for host, answer in writable.items():
                if answer.timeline == self._latest[answer.system]:
                    del tasks[host]
                    return host, answer.connection
            for name, port in writable:
                raise psycopg.OperationalError(
                    f"{name}:{port} takes writes, but another server was promoted in its place and can't be reached: "
                    "start that one, or set this one up as its standby"
                )
            raise next(task.exception() for task in reversed(ended.values()))  # type: ignore[misc]  # all failed
        finally:
            for task in tasks.values():
                task.cancel()
                task.add_done_callback(_discard)

    async def _ask(self, host: tuple[str, int]) -> _Answer:
        connection = await self._to(host)
        try:
            found = await (await connection.execute(_HISTORY)).fetchone()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError):  # a service that shows no such thing
            found = None
        return _Answer(connection, *(found or (0, 0)))


class _Answer(NamedTuple):
    """A host that takes writes, and the history of its data: whose it is, and how often another server took over."""

    connection: Connection
    system: int
    timeline: int


def _discard(ended: asyncio.Task[_Answer]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        ended.result().connection.pgconn.finish()
