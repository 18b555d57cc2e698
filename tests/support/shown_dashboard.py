"""A dashboard of a simulated pair, asked as a browser and as a program would ask it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import httpx

from pairmq.dashboard import Dashboard, _app
from pairmq.testing import SimulatedPair, simulated_pair

TOKEN = "a-token-of-these-tests"
MARK = {"x-pairmq-dashboard": "1"}
OPERATOR = {**MARK, "authorization": f"Bearer {TOKEN}"}


@dataclass
class Shown:
    """A dashboard, what it shows, and a client that asks it."""

    it: SimulatedPair
    dashboard: Dashboard
    client: httpx.AsyncClient

    async def status(self, **query: str) -> dict[str, Any]:
        answer = await self.client.get("/api/status", params=query)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def operate(self, word: str, entity: str, **headers: str) -> httpx.Response:
        body = {"word": word, "entity": entity, "kind": "queue"}
        return await self.client.post("/api/operate", json=body, headers=headers or OPERATOR)


def client_of(dashboard: object, base_url: str = "http://127.0.0.1:8765", **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=dashboard), base_url=base_url, **options)


@asynccontextmanager
async def shown(
    *entities: str, changes: dict[str, Any] | None = None, short: float = math.inf, **options: Any
) -> AsyncIterator[Shown]:
    """Show a pair of simulated brokers, in a test that runs in virtual time.

    Args:
        entities: made on the primary; orders if none is named.
        changes: options of the pair.
        short: an answer that takes more seconds to make is kept for a while, and that while is real: on a busy machine
            a test would be shown what was minutes ago in its own time.
        options: of the dashboard.
    """
    options = {"token": TOKEN, "open_to_read": True, **options}
    with patch.object(_app, "_SHORT", short):
        async with _shown(entities, changes or {}, options) as made:
            yield made


@asynccontextmanager
async def _shown(entities: Iterable[str], changes: dict[str, Any], options: dict[str, Any]) -> AsyncIterator[Shown]:
    async with (
        simulated_pair(entities=entities or ("orders",), **changes) as it,
        Dashboard(it.pair, **options) as dashboard,
        client_of(dashboard) as client,
    ):
        yield Shown(it, dashboard, client)
