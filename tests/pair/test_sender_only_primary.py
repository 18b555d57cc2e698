"""A transport that only sends, as to a web hook: it can be the primary of a pair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pairmq.core import PairOptions
from pairmq.model import ConfigurationError, Entity, FailureKind, FailureReason, Message, Receipt, Route, TransportError
from pairmq.pair import Pair
from pairmq.testing import TEST_OPTIONS, SimulatedBroker, in_virtual_time
from pairmq.transport import Admin, Capabilities, Endpoint, Scope, Sender, Transport

ORDERS = Entity("orders")


class Hook:
    """What is behind the transport."""

    def __init__(self) -> None:
        self.up = True
        self.took: list[bytes] = []
        self.pings = 0

    async def answer(self) -> None:
        await asyncio.sleep(0.01)
        if not self.up:
            raise TransportError("no answer", FailureKind.UNAVAILABLE, FailureReason.CONNECTION)


class HookSender(Sender):
    def __init__(self, hook: Hook, scope: Scope) -> None:
        self.hook, self.scope = hook, scope

    async def send(self, message: Message) -> None:
        self.scope.check()
        await self.hook.answer()
        self.hook.took.append(message.body)


class HookAdmin(Admin):
    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    async def check(self) -> None:
        await self.hook.answer()

    async def probe(self, entity: Entity) -> None:
        self.hook.pings += 1
        await self.hook.answer()


class HookTransport(Transport):
    def __init__(self, hook: Hook) -> None:
        super().__init__(Endpoint("hook", ("hook", "example.com"), "hook://example.com"))
        self.hook = hook
        self._admin = HookAdmin(hook)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(probes=True)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return HookSender(self.hook, Scope(self.scope, f"send to {entity}"))

    async def _close(self) -> None:
        """No connection is kept."""


@asynccontextmanager
async def paired(hook: Hook, options: PairOptions = TEST_OPTIONS) -> AsyncIterator[Pair]:
    async with Pair(HookTransport(hook), SimulatedBroker("secondary").transport(), options) as pair:
        yield pair


async def sent(pair: Pair, body: bytes) -> Receipt:
    return await pair.sender("orders").send(Message(body))


@in_virtual_time
async def test_a_message_is_sent_when_the_primary_is_up() -> None:
    hook = Hook()
    async with paired(hook) as pair:
        assert (await sent(pair, b"1")).route is Route.PRIMARY
        receipts = await pair.sender("orders").send_batch([Message(b"2"), Message(b"3")])
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
    assert hook.took == [b"1", b"2", b"3"]


@in_virtual_time
async def test_messages_of_an_outage_are_drained_when_the_primary_is_back() -> None:
    hook = Hook()
    async with paired(hook) as pair:
        hook.up = False
        receipts = [await sent(pair, b"%d" % number) for number in range(20)]
        assert {receipt.route for receipt in receipts} == {Route.BACKLOG}
        await asyncio.sleep(10)
        assert hook.pings >= 1
        hook.up = True
        await asyncio.sleep(60)
        assert (await sent(pair, b"after")).route is Route.PRIMARY
    assert sorted(hook.took[:20]) == sorted(b"%d" % number for number in range(20))
    assert hook.took[20:] == [b"after"]


@in_virtual_time
async def test_readiness_is_reported() -> None:
    hook = Hook()
    async with paired(hook) as pair:
        assert (await pair.check()).ready
        assert (await pair.check("orders")).ready


@in_virtual_time
async def test_receiving_is_refused_as_not_supported() -> None:
    async with paired(Hook()) as pair:
        with pytest.raises(ConfigurationError, match="receive from orders: not supported"):
            pair.receiver("orders")
