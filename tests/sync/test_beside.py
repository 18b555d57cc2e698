"""What needs an event loop runs beside a blocking pair, on the pair's own loop, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import httpx
import pytest

from pairmq.dashboard import serving
from pairmq.sync import Pair


@pytest.fixture
def pair(request):
    name = request.node.name
    with Pair.connect(f"memory://east-{name}", f"memory://west-{name}") as opened:
        yield opened


def test_a_dashboard_shows_the_pair_and_acts_on_it(pair):
    pair.hold("orders")
    with pair.beside(lambda inner: serving(inner, port=0)) as address:
        told = httpx.get(f"{address.url}api/status", timeout=20).json()
        assert [(row["path"], row["state"]) for row in told["entities"]["rows"]] == [("orders", "failed-over")]
        headers = {"x-pairmq-dashboard": "1", "authorization": f"Bearer {address.token}"}
        body = {"word": "mark_healthy", "entity": "orders", "kind": "queue"}
        assert httpx.post(f"{address.url}api/operate", json=body, headers=headers, timeout=20).status_code == 200
        assert pair.state("orders").value == "healthy"
    with pytest.raises(httpx.ConnectError):
        httpx.get(address.url)


def test_it_is_entered_and_left_on_the_pair_s_thread(pair):
    threads = []

    @asynccontextmanager
    async def noted(inner):
        threads.append(threading.current_thread().name)
        yield inner.name
        await asyncio.sleep(0)
        threads.append(threading.current_thread().name)

    with pair.beside(noted) as name:
        assert name == pair.name
        assert len(threads) == 1
    assert threads == ["pairmq", "pairmq"]


def test_it_is_left_when_the_block_fails(pair):
    left = []

    @asynccontextmanager
    async def noted(inner):
        try:
            yield
        finally:
            left.append(True)

    with pytest.raises(ZeroDivisionError), pair.beside(noted):
        raise ZeroDivisionError
    assert left == [True]


def test_what_entering_raises_reaches_the_caller(pair):
    @asynccontextmanager
    async def failing(inner):
        raise LookupError("no such thing")
        yield

    with pytest.raises(LookupError, match="no such thing"), pair.beside(failing):
        pass
