"""A publisher's channel, whatever happens to the calls that requested it, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from pairmq.model import FailureReason, TransportError
from pairmq.transport import Scope
from pairmq_rabbitmq import _link
from pairmq_rabbitmq._errors import Unsent, failure
from pairmq_rabbitmq._link import Link, Session
from pairmq_rabbitmq._publish import Parcel
from pairmq_rabbitmq._publisher import Publisher
from pairmq_rabbitmq._wire import Wire

PARCEL = Parcel(b"", "m", b"", b"")


class Broker:
    """A link whose connections, and the channels on them, open when the test lets them.

    Of a connection it implements the part that a publisher uses.
    """

    def __init__(self) -> None:
        self.current: Session | None = None
        self.attempts: list[asyncio.Future[Session]] = []
        self.openings: list[asyncio.Future[None]] = []
        self.closed: list[Session] = []
        """On which a channel was released."""

    async def session(self) -> Session:
        if self.current is None:
            self.attempts.append(asyncio.get_running_loop().create_future())
            self.current = await self.attempts[-1]
        return self.current

    def retire(self, session: Session, *, silent: bool) -> None:
        if self.current is session:
            self.current = None

    def connection(self) -> Session:
        """An open one, which has not answered yet."""
        wire = Wire(pytest.fail)

        async def open_channel(*, confirms: bool) -> object:
            self.openings.append(asyncio.get_running_loop().create_future())
            await self.openings[-1]
            closing = asyncio.get_running_loop().create_future()
            return SimpleNamespace(number=len(self.openings), closing=closing, is_closed=False)

        async def run(operation: Any) -> None:
            operation.close()  # nothing but the close of a channel is run here
            self.closed.append(session)

        session = cast(
            "Session",
            SimpleNamespace(
                wire=wire,
                usable=True,
                forsaken=0,
                users=0,
                take_publisher=lambda: None,
                reserve_publisher=lambda: None,
                open_channel=open_channel,
                on_end=lambda _: None,
                remove_on_end=lambda _: None,
                run=run,
            ),
        )
        return session


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def publisher(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A publisher that takes no pause of this machine for a silent broker."""
    monkeypatch.setattr(_link, "_SILENCE", 1000.0)
    return Publisher(cast("Link", broker), "send to orders")


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


async def given_up(call: asyncio.Task[Any]) -> None:
    call.cancel()
    await asyncio.wait((call,), timeout=30)
    assert call.cancelled()


async def settled() -> None:
    """Run everything that is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_failure_of_an_abandoned_attempt_is_not_raised_to_later_sends(
    broker: Broker, publisher: Publisher
) -> None:
    first = asyncio.create_task(publisher.publish([PARCEL], Scope()))
    await until(lambda: broker.attempts)
    await given_up(first)
    broker.attempts[0].set_exception(Unsent(TimeoutError("long ago")))
    await settled()
    second = asyncio.create_task(publisher.publish([PARCEL], Scope()))
    await until(lambda: second.done() or len(broker.attempts) == 2)
    assert not second.done()
    broker.attempts[1].set_exception(Unsent(ConnectionRefusedError("of this very attempt")))
    [answer] = await second
    assert isinstance(answer, TransportError)
    assert "of this very attempt" in str(answer)


async def test_a_call_finds_the_channel_that_one_given_up_had_asked_for(broker: Broker, publisher: Publisher) -> None:
    broker.current = broker.connection()
    first = asyncio.create_task(publisher.open(Scope()))
    await until(lambda: broker.openings)
    await given_up(first)  # too early to tell a slow broker from one that hangs
    second = asyncio.create_task(publisher.open(Scope()))
    await settled()
    broker.openings[0].set_result(None)
    await second
    await publisher.open(Scope())
    assert (len(broker.openings), broker.closed) == (1, [])


async def test_an_opening_that_was_given_up_takes_no_successors_place(
    broker: Broker, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "_SILENCE", 0.0)  # a caller that gives up has waited long enough
    hung, sound = broker.connection(), broker.connection()
    broker.current = hung
    first = asyncio.create_task(publisher.open(Scope()))
    await until(lambda: broker.openings)
    await given_up(first)
    assert broker.current is None
    broker.current = sound
    second = asyncio.create_task(publisher.open(Scope()))
    await until(lambda: len(broker.openings) == 2)
    broker.openings[1].set_result(None)
    await second
    broker.openings[0].set_result(None)
    await until(lambda: broker.closed)
    await publisher.open(Scope())
    assert (len(broker.openings), broker.closed) == (2, [hung])


async def test_an_opening_that_was_given_up_leaves_its_successor_alone_while_that_is_on_its_way(
    broker: Broker, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "_SILENCE", 0.0)
    hung, sound = broker.connection(), broker.connection()
    broker.current = hung
    first = asyncio.create_task(publisher.open(Scope()))
    await until(lambda: broker.openings)
    await given_up(first)
    broker.current = sound
    second = asyncio.create_task(publisher.open(Scope()))
    await until(lambda: len(broker.openings) == 2)
    broker.openings[0].set_result(None)
    await until(lambda: broker.closed)
    broker.openings[1].set_result(None)
    await second
    await publisher.open(Scope())
    assert (len(broker.openings), broker.closed) == (2, [hung])


async def test_channel_is_closed_when_opened_after_the_release(broker: Broker, publisher: Publisher) -> None:
    broker.current = broker.connection()
    first = asyncio.create_task(publisher.open(Scope()))
    await until(lambda: broker.openings)
    await given_up(first)
    publisher.release()
    broker.openings[0].set_result(None)
    await settled()
    assert broker.closed == [broker.current]


@pytest.mark.parametrize(
    ("exchange", "reason", "text"),
    [("", FailureReason.DISABLED, "no such virtual host"), ("news", FailureReason.NOT_FOUND, "no exchange 'news'")],
)
def test_a_host_without_its_default_exchange_is_being_deleted(exchange: str, reason: FailureReason, text: str) -> None:
    refused = failure(ChannelNotFoundEntity(f"NOT_FOUND - no exchange '{exchange}' in vhost 'shop'"), "send to orders")
    assert refused.reason is reason
    assert text in str(refused)


async def test_chunks_of_a_large_batch_do_not_wait_for_each_other(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a distance a call would be as slow as its round trips."""
    begun = asyncio.Barrier(16)

    async def publish(parcels: list[Parcel], scope: Scope) -> list[None]:
        await begun.wait()
        return [None] * len(parcels)

    monkeypatch.setattr(publisher, "_publish", publish)
    async with asyncio.timeout(60):
        assert await publisher.publish([PARCEL] * 4000, Scope()) == [None] * 4000


async def test_chunks_of_one_call_are_not_parted_by_those_of_another(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []

    async def publish(parcels: list[Parcel], scope: Scope) -> list[None]:
        begun.append(scope)
        await asyncio.sleep(0)
        return [None] * len(parcels)

    monkeypatch.setattr(publisher, "_publish", publish)
    first, second = Scope(), Scope()
    await asyncio.gather(*(publisher.publish([PARCEL] * 3, scope) for scope in (first, second)))  # of one id: 3 chunks
    assert begun == [first] * 3 + [second] * 3
