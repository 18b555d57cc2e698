"""The shared connection: what a connect or a session that somebody left does to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest
from redis.exceptions import NoPermissionError, ReadOnlyError

from pairmq.model import TransportError
from pairmq.testing import in_virtual_time
from pairmq.transport import AT_ONCE, Scope
from pairmq_redis import _errors, _link
from pairmq_redis._context import Context
from pairmq_redis._errors import NotSent, Unanswered
from pairmq_redis._link import Link
from pairmq_redis._url import parse_redis_url
from pairmq_redis._wire import Command, Reply

PING: list[Command] = [(b"PING",)]
LIMIT = 100.0
"""Seconds in which what needs no answer has ended, on a machine that stands still for a while too."""


class FakeWire:
    """A connection that opens and answers as told."""

    def __init__(self, *, opens: bool = True, answers: bool = True) -> None:
        self._opens = opens
        self._answers = answers
        self._answer: Reply = b"PONG"
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self.written: list[Command] = []
        self.aborted = False

    async def open(self) -> None:
        if not self._opens:
            await asyncio.Event().wait()

    def write(self, commands: Sequence[Command]) -> None:
        self.written += commands
        if self._answers:
            self.answer(*(self._answer for _ in commands))

    def answers(self, reply: Reply) -> None:
        self._answer = reply

    def answer(self, *replies: Reply) -> None:
        for reply in replies:
            self._replies.put_nowait(reply)

    async def deliver(self, take: Callable[[Reply], None]) -> NoReturn:
        while True:
            take(await self._replies.get())

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
        async with asyncio.timeout(LIMIT):
            await Link(make).call(PING, Scope())


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_closing_ends_calls_that_wait_for_a_connection(turns: int) -> None:
    link = link_of(FakeWire(opens=False))
    call = asyncio.create_task(link.call(PING, Scope()))
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT):
        await link.close()
        with pytest.raises(NotSent):
            await call


async def in_flight(link: Link, wire: FakeWire, *names: bytes) -> list[asyncio.Task[list[Reply]]]:
    """Calls that were written, each asking for something of a name."""
    calls = [asyncio.create_task(link.call([(b"GET", name)], Scope())) for name in names]
    while len(wire.written) < len(names):
        await asyncio.sleep(0)
    return calls


async def cancelled(call: asyncio.Task[list[Reply]]) -> None:
    call.cancel()
    await asyncio.wait([call])


@pytest.mark.parametrize("given_up", [0, 1, 2])
async def test_after_a_cancelled_call_each_other_one_gets_its_own_reply(given_up: int) -> None:
    names, wire = [b"a", b"b", b"c"], FakeWire(answers=False)
    link = link_of(wire)
    calls = await in_flight(link, wire, *names)
    await cancelled(calls[given_up])
    wire.answer(*names)
    others = [number for number in range(3) if number != given_up]
    assert await asyncio.gather(*(calls[number] for number in others)) == [[names[number]] for number in others]
    assert wire.aborted  # nobody waits on it any more
    await link.close()


async def test_no_call_is_written_to_a_connection_on_which_one_was_cancelled() -> None:
    doubtful, fresh = FakeWire(answers=False), FakeWire()
    link = link_of(doubtful, fresh)
    left, waiting = await in_flight(link, doubtful, b"a", b"b")
    await cancelled(left)
    next_one = asyncio.create_task(link.call(PING, Scope()))
    while not fresh.written and PING[0] not in doubtful.written:
        await asyncio.sleep(0)
    assert fresh.written == PING
    assert await next_one == [b"PONG"]
    await link.close()
    await waiting


async def test_closing_ends_calls_on_a_retired_connection_too() -> None:
    hung, sound = FakeWire(answers=False), FakeWire()
    link = link_of(hung, sound)
    left, waiting = await in_flight(link, hung, b"a", b"b")
    left.cancel()
    await asyncio.wait([left])
    assert await link.call(PING, Scope()) == [b"PONG"]
    async with asyncio.timeout(LIMIT):
        await link.close()
        [reply] = await waiting
    assert isinstance(reply, Unanswered)
    assert hung.aborted
    assert sound.aborted


async def test_a_closed_owner_writes_nothing_more() -> None:
    wire, scope = FakeWire(), Scope()
    link = link_of(wire)
    await link.call(PING, Scope())
    scope.close(lambda begun: _errors.closed("send", maybe_applied=begun))
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
    scope.close(lambda begun: _errors.closed("send", maybe_applied=begun))
    with pytest.raises(TransportError) as caught:
        await call
    assert not caught.value.maybe_applied
    await link.close()


@in_virtual_time
async def test_the_next_call_connects_anew_when_the_server_is_no_master_any_more() -> None:
    demoted, master = FakeWire(), FakeWire()
    link = link_of(demoted, master)
    await link.call(PING, Scope())
    demoted.answers(ReadOnlyError("You can't write against a read only replica."))
    await asyncio.sleep(60)
    [reply] = await link.call(PING, Scope())
    assert isinstance(reply, ReadOnlyError)
    assert await link.call(PING, Scope()) == [b"PONG"]
    assert demoted.aborted
    await link.close()


@in_virtual_time
async def test_calls_in_flight_get_their_replies_when_the_server_is_no_master_any_more() -> None:
    demoted, master = FakeWire(answers=False), FakeWire()
    link = link_of(demoted, master)
    calls = await in_flight(link, demoted, b"a", b"b")
    await asyncio.sleep(60)
    demoted.answer(ReadOnlyError())
    assert isinstance((await calls[0])[0], ReadOnlyError)
    assert await link.call(PING, Scope()) == [b"PONG"]
    demoted.answer(b"b")
    assert await calls[1] == [b"b"]
    await link.close()


@in_virtual_time
async def test_refused_calls_make_no_more_than_two_connections_a_second() -> None:
    made = 0

    def make() -> FakeWire:
        nonlocal made
        made += 1
        wire = FakeWire()
        wire.answers(ReadOnlyError())
        return wire

    link = Link(make)
    for _ in range(1000):
        await link.call(PING, Scope())
        await asyncio.sleep(0.01)
    assert 10 <= made <= 21
    await link.close()


@in_virtual_time
async def test_a_connection_is_kept_when_the_server_refuses_a_call() -> None:
    wire = FakeWire()
    link = link_of(wire)
    await link.call(PING, Scope())
    wire.answers(NoPermissionError())
    await asyncio.sleep(60)
    await link.call(PING, Scope())
    await link.call(PING, Scope())
    assert len(wire.written) == 3
    await link.close()


@in_virtual_time
async def test_all_connections_are_made_anew_when_one_meets_a_server_that_is_no_master() -> None:
    """One that only reads would go on showing what an old master holds."""
    wires: list[FakeWire] = []

    def make() -> FakeWire:
        wires.append(FakeWire())
        return wires[-1]

    context = Context(parse_redis_url("redis://127.0.0.1"), Scope(), make)
    for link in (context.sending, context.control):
        await link.call(PING, Scope())
    await asyncio.sleep(60)
    wires[0].answers(ReadOnlyError())
    for link in (context.sending, context.control):
        await link.call(PING, Scope())
    assert len(wires) == 3
    await context.sending.call(PING, Scope())
    assert len(wires) == 4
    assert wires[0].aborted
    assert wires[1].aborted
    for link in (context.sending, context.control):
        await context.end_link(link)


async def test_calls_end_over_many_turns_of_the_loop_when_their_connection_is_lost() -> None:
    """Each of their sends goes on with its next attempt in that turn."""
    wire = FakeWire(answers=False)
    link = link_of(wire)
    calls = await in_flight(link, wire, *(b"%d" % number for number in range(1000)))
    link.leave(lambda lost: lost is wire)
    await ends_slowly(link, calls)


async def test_calls_end_over_many_turns_of_the_loop_when_no_connection_can_be_made() -> None:
    opened = asyncio.Event()

    class Refusing(FakeWire):
        async def open(self) -> None:
            await opened.wait()
            raise ConnectionRefusedError

    link = link_of(Refusing())
    calls = [asyncio.create_task(link.call(PING, Scope())) for _ in range(1000)]
    await asyncio.sleep(0)
    opened.set()
    await ends_slowly(link, calls)


async def ends_slowly(link: Link, calls: Sequence[asyncio.Task[list[Reply]]]) -> None:
    most = left = len(calls)
    ended = []
    while left:
        await asyncio.sleep(0)
        now = sum(not call.done() for call in calls)
        ended.append(left - now)
        left = now
    assert max(ended) <= AT_ONCE < most
    await asyncio.gather(*calls, return_exceptions=True)
    await link.close()


async def test_a_cancelled_call_looks_at_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may be cancelled at about one instant (SPEC 3.1); that would hold up the loop for seconds."""
    looks = 0

    class Counted(_link._Call):
        def done(self) -> bool:
            nonlocal looks
            looks += 1
            return super().done()

    monkeypatch.setattr(_link, "_Call", Counted)
    wire, count = FakeWire(answers=False), 200
    link = link_of(wire)
    calls = [asyncio.create_task(link.call(PING, Scope())) for _ in range(count)]
    while len(wire.written) < count:
        await asyncio.sleep(0)
    for call in calls:
        await cancelled(call)
    await link.close()
    assert wire.aborted
    assert looks <= 4 * count
