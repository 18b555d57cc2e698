"""A FastAPI application holds a pair, and answers whether messages move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from pairmq import ConfigurationError, Entity, Message, Pair, PairOptions
from pairmq.testing import MemoryBroker
from pairmq_web.asgi import ReadinessApp, open_pair, pair_of
from pairmq_web.fastapi import get_pair, pair_lifespan, readiness_router

OPTIONS = PairOptions(
    backlog_queue_count=1,
    failover_interval=0,
    ping_primary_interval=60,
    attempt_timeout=20,
    flap_window=0,
    close_grace=1,
)


@pytest.fixture
async def brokers(pair_primary: MemoryBroker, pair_secondary: MemoryBroker) -> tuple[MemoryBroker, MemoryBroker]:
    """Two brokers; the first has the queue ``orders``."""
    transport = pair_primary.transport()
    await transport.admin.create(Entity("orders"))
    await transport.close()
    return pair_primary, pair_secondary


def made(brokers: tuple[MemoryBroker, MemoryBroker]) -> FastAPI:
    app = FastAPI(
        lifespan=pair_lifespan(lambda: Pair.connect(*(side.transport() for side in brokers), options=OPTIONS))
    )
    app.include_router(readiness_router("orders"))

    @app.post("/orders/{number}")
    async def place(number: int, pair: Annotated[Pair, Depends(get_pair)]) -> str:
        receipt = await pair.sender("orders").send(Message(str(number).encode()))
        return receipt.route.value

    return app


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client,
    ):
        yield client


async def test_a_request_sends_with_the_pair_of_the_application(brokers):
    async with served(made(brokers)) as client:
        assert (await client.post("/orders/1")).json() == "primary"
        await brokers[0].stop()
        assert (await client.post("/orders/2")).json() == "backlog"


async def test_a_mounted_application_finds_the_pair_of_its_parent(brokers):
    parent = made(brokers)
    inner, innermost = FastAPI(), FastAPI()
    innermost.include_router(readiness_router("orders"))

    @innermost.post("/orders/{number}")
    async def place(number: int, pair: Annotated[Pair, Depends(get_pair)]) -> str:
        return (await pair.sender("orders").send(Message(str(number).encode()))).route.value

    inner.mount("/v1", innermost)
    parent.mount("/api", inner)
    async with served(parent) as client:
        assert (await client.post("/api/v1/orders/1")).json() == "primary"
        assert (await client.get("/api/v1/ready")).status_code == 200
    with pytest.raises(ConfigurationError):
        pair_of(parent)


async def test_a_mounted_application_without_any_pair_says_what_to_do():
    inner = FastAPI()

    @inner.get("/pair")
    async def pair(pair: Annotated[Pair, Depends(get_pair)]) -> None: ...

    parent = FastAPI()
    parent.mount("/api", inner)
    async with served(parent) as client:
        with pytest.raises(ConfigurationError, match="mounted in"):
            await client.get("/api/pair")


async def test_an_application_is_ready_while_either_side_takes_messages(brokers):
    async with served(made(brokers)) as client:
        first = await client.get("/ready")
        await brokers[0].stop()
        second = await client.get("/ready")
        await client.post("/orders/1")
        third = await client.get("/ready")
    assert [answer.status_code for answer in (first, second, third)] == [200, 200, 200]
    found = [answer.json()["entities"][0] for answer in (first, second, third)]
    assert [(one["state"], one["route"]) for one in found] == [
        ("healthy", "primary"),
        ("healthy", "backlog"),
        ("failed-over", "backlog"),
    ]
    assert first.headers["cache-control"] == "no-store"


async def test_an_application_whose_messages_no_broker_takes_is_not_ready_and_says_why(brokers):
    async with served(made(brokers)) as client:
        for broker in brokers:
            await broker.stop()
        answer = await client.get("/ready")
        assert answer.status_code == 503
        reasons = answer.json()["entities"][0]["reasons"]
        assert [reason.split(":")[0] for reason in reasons] == ["primary", "backlog"]


async def test_a_closed_pair_is_not_ready(brokers):
    app = made(brokers)
    async with served(app) as client:
        await pair_of(app).close()
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)


async def test_an_application_that_is_not_running_has_no_pair(brokers):
    app = made(brokers)
    with pytest.raises(ConfigurationError, match="pair_lifespan"):
        pair_of(app)
    async with served(app):
        assert isinstance(pair_of(app), Pair)
    with pytest.raises(ConfigurationError):
        pair_of(app)


async def test_other_asgi_applications_mount_the_check(brokers):
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_pair(app, lambda: Pair.connect(*(side.transport() for side in brokers), options=OPTIONS)):
            yield

    app = Starlette(routes=[Mount("/ready", ReadinessApp(lambda: pair_of(app), "orders"))], lifespan=lifespan)
    async with served(app) as client:
        answer = await client.get("/ready/")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        head = await client.head("/ready/")
        assert (head.status_code, head.content, head.headers["content-type"]) == (200, b"", "application/json")
        assert (await client.post("/ready/")).status_code == 405
        await brokers[0].stop()
        await brokers[1].stop()
        assert (await client.get("/ready/")).status_code == 503


async def test_an_application_that_is_started_again_while_it_runs_keeps_its_pair(brokers):
    application = made(brokers)
    async with served(application) as client:
        async with application.router.lifespan_context(application):
            assert (await client.post("/orders/1")).status_code == 200
        assert (await client.post("/orders/2")).json() == "primary"
    with pytest.raises(ConfigurationError):
        pair_of(application)
