"""Connections without a server, as on which nothing arrives any more: what ends, when, and what waiting costs."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from psycopg.adapt import Transformer
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.waiting import WAIT_R

from pairmq.model import Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.testing import in_virtual_time
from pairmq.transport import Scope
from pairmq_postgres import _drivers
from pairmq_postgres._connection import Connection, Hosts, Rows, Statement
from pairmq_postgres._errors import NotSent, failure
from pairmq_postgres._pool import Calls, Pool, Together
from pairmq_postgres._receiver import PostgresReceiver, PostgresSessionReceiver
from pairmq_postgres._url import parse_url

URL = parse_url("postgresql://127.0.0.1/queues")


class SilentPool(Pool):
    async def ask(self, begin: Callable[[], Sequence[Statement]], **_: object) -> list[Rows]:
        begin()
        await asyncio.Event().wait()
        raise AssertionError


async def test_waiting_for_an_answer_leaves_the_loop_alone():
    resumed = 0

    def answer() -> Iterator[Any]:
        nonlocal resumed
        while not (yield WAIT_R):
            resumed += 1
        return "answer"

    mine, servers = socket.socketpair()
    with mine, servers:
        connection = Mock(pgconn=Mock(socket=mine.fileno()))
        waiting = asyncio.ensure_future(Connection.wait(connection, answer()))
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        servers.send(b"x")
        assert await waiting == "answer"
    assert resumed == 0


@pytest.mark.parametrize("kind", [PostgresReceiver, PostgresSessionReceiver])
@in_virtual_time
async def test_long_poll_ends_soon_when_the_server_is_silent(kind):
    loop = asyncio.get_running_loop()
    receiver = kind(Calls(SilentPool(URL), Scope()), Source(Entity("orders")), {}, set())
    began = loop.time()
    with pytest.raises(TransportError) as caught:
        await (receiver.receive(1, 900) if kind is PostgresReceiver else receiver.accept(None, 900))
    assert loop.time() - began < 30
    error = caught.value
    assert (error.kind, error.reason, error.maybe_applied) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, True)


@in_virtual_time
async def test_a_call_serves_all_that_ask_while_it_waits_for_the_one_before_it():
    """Which at a distance is for a moment only."""
    loop = asyncio.get_running_loop()
    calls: list[tuple[float, list[int]]] = []
    answer = asyncio.Event()

    async def work(begin: Callable[[], list[int]]) -> None:
        calls.append((loop.time() - began, begin()))
        await answer.wait()

    together = Together(work, 100)
    each = Calls(Pool(URL), Scope())
    began = loop.time()
    asked = [asyncio.ensure_future(each.share("look", 1, lambda: together.join(1)))]
    await asyncio.sleep(0.001)
    asked += [asyncio.ensure_future(each.share("look", n, lambda: together.join(1))) for n in (2, 3, 4)]
    await asyncio.sleep(0.001)
    asked[2].cancel()
    asked.append(asyncio.ensure_future(each.share("look", 5, lambda: together.join(99))))
    await asyncio.sleep(1)
    answer.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert [what for _, what in calls] == [[1], [2, 4], [5]]
    assert [at for at, _ in calls] == pytest.approx([0, 0.006, 0.007], abs=1e-6)


@pytest.mark.parametrize(("patience", "kept"), [(0.01, True), (5.0, False)])
@in_virtual_time
async def test_idle_connections_are_dropped_after_a_call_that_had_no_answer(monkeypatch, patience, kept):
    """A firewall that forgets one connection forgets all; a caller that gives up at once proves nothing."""
    silent = asyncio.Event()

    class Connection(Mock):
        async def run(self, _: Sequence[Statement]) -> list[Rows]:
            await asyncio.sleep(0)
            if silent.is_set():
                await asyncio.Event().wait()
            return []

    async def connect(self: Hosts) -> Any:
        idle = TransactionStatus.IDLE
        return Connection(closed=False, users=0, info=Mock(host="h", port=1), pgconn=Mock(transaction_status=idle))

    monkeypatch.setattr(Hosts, "connect", connect)
    monkeypatch.setattr("pairmq_postgres._pool._has_news", lambda _: False)
    pool = Pool(URL)
    await asyncio.gather(*(pool.run([("SELECT 1", {})]) for _ in range(5)))
    idle = list(pool._idle)
    assert len(idle) == 5
    silent.set()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(patience):
            await pool.run([("SELECT 1", {})])
    assert [not one.pgconn.finish.called for one in idle[:4]] == [kept] * 4


@pytest.mark.parametrize(("options", "answer", "made"), [("", 0.3, 1), ("?listen=false", 0.3, 4), ("", 0.001, 4)])
@in_virtual_time
async def test_sends_to_a_distant_server_share_a_connection(monkeypatch, options, answer, made):
    """Each took one of its own, which six round trips make, and a notification the one of the next send."""
    connections: list[object] = []

    class Connection(SimpleNamespace):
        async def run(self, statements: Sequence[Statement]) -> list[Rows]:
            await asyncio.sleep(answer)
            return []

        run_pipelined = run

    async def connect(self: Hosts) -> Any:
        idle = TransactionStatus.IDLE
        info, pgconn = Mock(host="h", port=1), Mock(transaction_status=idle)
        connections.append(Connection(closed=False, users=0, info=info, pgconn=pgconn))
        return connections[-1]

    monkeypatch.setattr(Hosts, "connect", connect)
    monkeypatch.setattr("pairmq_postgres._pool._has_news", lambda _: False)
    pool = Pool(parse_url(f"postgresql://127.0.0.1/queues{options}"))
    await pool.run([("SELECT 1", {})])
    pool.notify("orders")
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(pool.ask(lambda: [("SELECT 1", {})], pipelined=True) for _ in range(3)))
    assert asyncio.get_running_loop().time() - began == pytest.approx(answer)
    assert len(connections) == made
    await pool.run([("SELECT 1", {})])
    assert len(connections) == made  # what was shared is idle now
    await pool.close()


@pytest.mark.parametrize("several", [False, True])
async def test_of_a_name_with_several_addresses_the_first_one_that_answers_is_tried_first(monkeypatch, several):
    """psycopg waits for each in turn: a dead one cost each connection five seconds."""
    tried: list[tuple[str, str | None]] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        addresses = ("127.0.0.2", "127.0.0.1") if several else ("127.0.0.1",)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def connect(*, host: str, hostaddr: str | None = None, **_: Any) -> Mock:
        tried.append((host, hostaddr))
        return Mock(**{"info.server_version": 130000})

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(Connection, "connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as server:
        await Hosts(parse_url(f"postgresql://queues.test:{server.getsockname()[1]}/queues")).connect()
    assert tried == [("queues.test,queues.test", "127.0.0.1,127.0.0.2") if several else ("queues.test", "127.0.0.1")]


@pytest.mark.parametrize(("version", "listen"), [(130000, "true"), (140000, "true"), (140000, "false")])
async def test_the_server_notices_that_a_client_is_gone_from_version_14_on(monkeypatch, version, listen):
    """Not through PgBouncer, which shares its sessions; later connections need no round trip for it."""
    set_by: list[str] = []

    async def connect(*, options: str = "", **_: Any) -> Mock:
        set_by.append("options" if "client_connection_check_interval" in options else "")
        made = Mock(**{"info.server_version": version})
        made.execute = AsyncMock(side_effect=lambda statement: set_by.append(statement.partition("=")[0]))
        return made

    monkeypatch.setattr(Connection, "connect", connect)
    hosts = Hosts(parse_url(f"postgresql://127.0.0.1/queues?listen={listen}"))
    await hosts.connect()
    await hosts.connect()
    known = version >= 140000 and listen == "true"
    assert set_by == (["", "SET client_connection_check_interval", "options"] if known else ["", ""])


async def test_a_name_of_which_no_address_answers_is_unavailable_and_nothing_was_sent(monkeypatch):
    async def refused(host: str, port: int) -> None:
        raise ConnectionRefusedError(host)

    monkeypatch.setattr("pairmq_postgres._connection.lookup", refused)
    with pytest.raises(NotSent) as failed:
        await Hosts(parse_url("postgresql://queues.test/queues")).connect()
    error = failure(failed.value, "send to orders")
    assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)


class Libpq:
    """Takes what psycopg 3.2 takes of a statement, and sends nothing."""

    transaction_status, pipeline_status = TransactionStatus.IDLE, PipelineStatus.OFF

    def __init__(self) -> None:
        self.sent = 0

    def send_query_prepared(self, _: bytes, values: object, formats: object, *others: object) -> None:
        assert type(values) is type(formats) is list
        self.sent += 1

    def flush(self) -> int:
        raise ConnectionAbortedError

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *others: None


def test_statements_without_parameters_have_a_list_of_formats_for_psycopg_3_2():
    libpq = Libpq()
    connection: Any = SimpleNamespace(pgconn=libpq, prepare_threshold=5, _names={}, _numbers=itertools.count())
    Connection._write(connection, [("SELECT 1", {}), ("SELECT %(one)s", {"one": 1})], Transformer())
    assert libpq.sent == 2


async def test_outbox_has_a_list_of_values_for_psycopg_3_2():
    class Theirs:
        pgconn, lock, prepare_threshold = Libpq(), asyncio.Lock(), 5
        isolation_level = read_only = deferrable = None

        async def wait(self, exchange: Generator[object, None, None]) -> None:
            next(exchange)

    with pytest.raises(ConnectionAbortedError):
        await _drivers._PSYCOPG.store_one(Theirs(), _drivers.Shelf(False, 1, "1", None), "{}", b"1")
    assert Theirs.pgconn.sent == 1
