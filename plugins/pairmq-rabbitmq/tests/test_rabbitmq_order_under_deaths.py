"""Proofs and order while readers of one queue die at random, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from ordered_queue import ORDERED, QUEUE, SOURCE
from pairmq.model import Message, TransportError
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = [pytest.mark.real_server, pytest.mark.long]

SENDERS = 4
PROOFS, DEATHS = 25, 25
PATIENCE = 200.0  # s


class World:
    """Senders that number their messages, readers that complete them and die, and a process that reads the positions.

    Args:
        url: of the server.
        seed: of all chance.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.confirmed: set[str] = set()
        self.home: dict[str, None] = {}
        """Ids in the order of their first copies."""
        self.deaths = self.proofs = 0
        self.false: list[set[str]] = []

    @property
    def seen_enough(self) -> bool:
        return self.proofs >= PROOFS and self.deaths >= DEATHS

    async def send(self, name: int) -> None:
        async with registry.transport(self.url) as transport:
            sender, number = transport.sender(QUEUE), 0
            while not self.seen_enough:
                number += 1
                await sender.send(Message(b"", message_id=f"{name}/{number:06}"))
                self.confirmed.add(f"{name}/{number:06}")
                await asyncio.sleep(self.chance.random() * 0.02)

    async def read(self) -> None:
        """One reader after another, each of which ends while holding messages: by a close, or by a lost connection."""
        while not self.seen_enough:
            transport = registry.transport(self.url)
            with contextlib.suppress(TransportError):
                await self._read_on(transport, self.chance.randrange(200))
            if self.chance.random() < 0.5:
                session = transport._context.consuming.current
                if session is not None:
                    session.end(ConnectionResetError("it died"))
            await transport.close()
            self.deaths += 1

    async def _read_on(self, transport: Transport, messages: int) -> None:
        reader = transport.receiver(SOURCE)
        while messages > 0 and not self.seen_enough:
            for delivery in await reader.receive(self.chance.randint(1, 40), 0.5):
                self.home.setdefault(delivery.message.message_id or "")
                await reader.complete(delivery)
                messages -= 1
                if messages <= 0:
                    return

    async def look(self) -> None:
        async with registry.transport(self.url) as transport:
            while not self.seen_enough:
                before = set(self.confirmed)
                told = await transport.admin.positions(QUEUE)
                mark = told.newest
                while told.oldest is not None and told.oldest <= mark and not self.seen_enough:
                    await asyncio.sleep(0.005)
                    told = await transport.admin.positions(QUEUE)
                if told.oldest is None or told.oldest > mark:
                    self.proofs += 1
                    if missing := before - self.home.keys():
                        self.false.append(missing)


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_proof_is_false_and_no_order_is_lost(rabbit: RabbitServer, seed: int) -> None:
    world = World(f"{rabbit.url}?connect_timeout=10", seed)
    async with registry.transport(world.url) as maker:
        await maker.admin.create(QUEUE, ORDERED)
    tasks = [world.read(), world.read(), world.look(), world.look(), *map(world.send, range(SENDERS))]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
    assert world.false == []
    for name in range(SENDERS):
        arrived = [each for each in world.home if each.startswith(f"{name}/")]
        assert arrived == sorted(arrived)
