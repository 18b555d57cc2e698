"""The shared connection: what a connect or a session that somebody left does to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pairmq.model import TransportError
from pairmq_redis import _errors
from pairmq_redis._errors import NotSent, Unanswered
from pairmq_redis._link import Link, Scope
from pairmq_redis._wire import Command, Reply

PING: list[Command] = [(b"PING",)]


class FakeWire:
    """A connection that opens and answers as told."""

    def __init__(self, *, opens: bool = True, answers: bool = True) -> None:
        self._opens = opens
        self._answers = answers
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self.written: list[Command] = []
        self.aborted = False

    async def open(self) -> None:
        if not self._opens:
            await asyncio.Event().wait()

    def write(self, commands: Sequence[Command]) -> None:
        self.written += commands
        if self._answers:
            for _ in commands:
                self._replies.put_nowait(b"PONG")

    async def read(self) -> Reply:
        return await self._replies.get()

    def abort(self) -> None:
        self.aborted = True


def link_of(*wires: FakeWire) -> Link:
    left = iter(wires)
    return Link(lambda: next(left))


async def test_a_connect_that_was_given_up_does_not_fail_the_next_call() -> None:
    link = link_of(FakeWire(opens=False), FakeWire())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await link.call(PING, Scope())
    assert await link.call(PING, Scope()) == [b"PONG"]
    await link.close()


async def test_a_connection_that_cannot_be_made_fails_the_call() -> None:
    def make() -> FakeWire:
        raise OSError("no more files")

    with pytest.raises(NotSent, match="no more files"):
        async with asyncio.timeout(1):
            await Link(make).call(PING, Scope())


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_closing_ends_calls_that_wait_for_a_connection(turns: int) -> None:
    link = link_of(FakeWire(opens=False))
    call = asyncio.create_task(link.call(PING, Scope()))
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await link.close()
        with pytest.raises(NotSent):
            await call


async def test_closing_ends_calls_on_a_retired_connection_too() -> None:
    hung, sound = FakeWire(answers=False), FakeWire()
    link = link_of(hung, sound)
    left, waiting = (asyncio.create_task(link.call(PING, Scope())) for _ in range(2))
    await asyncio.sleep(0.01)
    left.cancel()
    await asyncio.wait([left])
    assert await link.call(PING, Scope()) == [b"PONG"]
    async with asyncio.timeout(1):
        await link.close()
        [reply] = await waiting
    assert isinstance(reply, Unanswered)
    assert hung.aborted
    assert sound.aborted


async def test_a_closed_owner_writes_nothing_more() -> None:
    wire, scope = FakeWire(), Scope()
    link = link_of(wire)
    await link.call(PING, Scope())
    scope.close(lambda: _errors.closed("send", maybe_applied=True))
    with pytest.raises(TransportError) as caught:
        await link.call([(b"XADD",)], scope)
    assert not caught.value.maybe_applied
    assert wire.written == PING
    await link.close()


async def test_an_owner_that_closes_during_the_connect_is_certain_that_nothing_was_written() -> None:
    scope = Scope()
    link = link_of(FakeWire(opens=False))
    call = asyncio.create_task(link.call(PING, scope))
    await asyncio.sleep(0.01)
    scope.close(lambda: _errors.closed("send", maybe_applied=True))
    with pytest.raises(TransportError) as caught:
        await call
    assert not caught.value.maybe_applied
    await link.close()
