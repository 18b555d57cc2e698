"""What a transport need not write: the defaults of the interfaces, and the scope that ends calls."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import (
    Admin,
    Capabilities,
    Endpoint,
    QueueProperties,
    Receiver,
    Scope,
    Sender,
    Transport,
    is_nothing_sent,
    nothing_sent,
)

ORDERS = Entity("orders")


def failed(reason: FailureReason) -> TransportError:
    return TransportError("no", FailureKind.REFUSED, reason)


class OneByOne(Sender):
    """Sends what is not ``bad``; ``slow`` waits for ever, and wrote nothing."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message.body == b"bad":
            raise failed(FailureReason.MALFORMED)
        if message.body == b"slow":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cancellation:
                nothing_sent(cancellation)
                raise
        self.sent.append(message.body)


class Polling(Receiver):
    def __init__(self) -> None:
        self.completed: list[object] = []

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return []

    async def complete(self, delivery: Delivery) -> None:
        if delivery.lock_token is None:
            raise failed(FailureReason.LOCK_LOST)
        self.completed.append(delivery.lock_token)


class Probing(Admin):
    async def probe(self, entity: Entity) -> None:
        """It accepts writes."""


class OneQueue(Probing):
    reachable = True

    async def properties(self, entity: Entity) -> QueueProperties:
        if not self.reachable:
            raise TransportError("down", FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
        if entity != ORDERS:
            raise failed(FailureReason.NOT_FOUND)
        return QueueProperties()


class Smallest(Transport):
    def __init__(self) -> None:
        super().__init__(Endpoint("smallest", ("smallest",), "smallest://"))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def admin(self) -> Admin:
        return Probing()

    def sender(self, entity: Entity) -> Sender:
        return OneByOne()

    async def _close(self) -> None:
        """Nothing is open."""


def messages(*bodies: bytes) -> list[Message]:
    return [Message(body, message_id=str(number)) for number, body in enumerate(bodies)]


async def cancelled_batch(*bodies: bytes) -> TimeoutError:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await OneByOne().send_batch(messages(*bodies))
    return caught.value


async def test_a_batch_is_sent_in_order_and_reports_each_failure() -> None:
    sender = OneByOne()
    outcomes = await sender.send_batch(messages(b"1", b"bad", b"2"))
    assert [error and error.reason for error in outcomes] == [None, FailureReason.MALFORMED, None]
    assert sender.sent == [b"1", b"2"]


async def test_a_cancelled_batch_sent_nothing_when_its_first_send_sent_nothing() -> None:
    assert is_nothing_sent(await cancelled_batch(b"slow", b"1"))


async def test_a_cancelled_batch_is_in_doubt_when_a_message_was_sent() -> None:
    assert not is_nothing_sent(await cancelled_batch(b"1", b"slow"))


async def test_a_batch_is_completed_in_order_and_reports_each_failure() -> None:
    receiver = Polling()
    deliveries = [Delivery(Message(b""), lock_token=token) for token in (1, None, 2)]
    outcomes = await receiver.complete_batch(deliveries)
    assert [error and error.reason for error in outcomes] == [None, FailureReason.LOCK_LOST, None]
    assert receiver.completed == [1, 2]


async def test_an_entity_exists_when_it_has_properties() -> None:
    assert await OneQueue().exists(ORDERS)
    assert not await OneQueue().exists(Entity("other"))


async def test_a_check_passes_when_the_broker_answers_and_fails_when_it_does_not() -> None:
    admin = OneQueue()
    await admin.check()
    admin.reachable = False
    with pytest.raises(TransportError, match="down"):
        await admin.check()


async def test_what_is_not_written_is_not_supported() -> None:
    transport, receiver, admin, delivery = Smallest(), Polling(), Probing(), Delivery(Message(b""), None)
    for call in (
        lambda: receiver.abandon(delivery),
        lambda: receiver.dead_letter(delivery, "reason", "description"),
        lambda: receiver.renew_lock(delivery),
        lambda: admin.check(),
        lambda: admin.exists(ORDERS),
        lambda: admin.create(ORDERS),
        lambda: admin.create_subscription(ORDERS, "alice"),
        lambda: admin.properties(ORDERS),
        lambda: admin.counts(Source(ORDERS)),
        lambda: admin.positions(ORDERS),
        lambda: admin.delete(ORDERS),
        lambda: admin.list_entities(),
        lambda: admin.peek(Source(ORDERS), 1),
        lambda: admin.purge(Source(ORDERS)),
        lambda: transport.accept_session(Source(ORDERS), wait=0),
    ):
        with pytest.raises(TransportError, match="not supported by this transport") as caught:
            await call()
        assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
    with pytest.raises(TransportError, match="receive from orders: not supported"):
        transport.receiver(Source(ORDERS))
    assert transport.measure(Message(b"four")) == 4
    assert not admin.is_system_entity(ORDERS)


class Call:
    def __init__(self) -> None:
        self.error: TransportError | None = None

    def end(self, error: TransportError) -> None:
        self.error = error


def test_a_scope_ends_its_calls_when_it_closes() -> None:
    scope, ended, left = Scope(doing="send to orders"), Call(), Call()
    scope.add(ended)
    scope.add(left)
    scope.discard(left)
    scope.check()
    scope.close()
    assert str(ended.error) == "send to orders: it was closed"
    assert ended.error is not None
    assert ended.error.reason is FailureReason.CLOSED
    assert ended.error.maybe_applied
    assert left.error is None


def test_a_closed_scope_refuses_calls() -> None:
    scope, late = Scope(), Call()
    scope.close()
    scope.close()
    with pytest.raises(TransportError) as caught:
        scope.check()
    assert not caught.value.maybe_applied
    scope.add(late)
    assert late.error is not None


def test_a_scope_closes_with_its_parent() -> None:
    parent = Scope()
    child, call = Scope(parent, "receive from orders"), Call()
    child.add(call)
    parent.close()
    assert child.closed
    assert str(call.error) == "receive from orders: it was closed"
    assert Scope(parent).closed


async def test_a_transport_that_ends_closes_the_scopes_of_its_objects() -> None:
    transport = Smallest()
    scope = Scope(transport.scope)
    await transport.close()
    assert scope.closed


async def test_a_race_ends_with_the_operation_or_with_the_scope() -> None:
    scope, begun = Scope(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    assert await scope.race(asyncio.sleep(0, "done")) == "done"
    racing = asyncio.ensure_future(scope.race(wait()))
    await begun.wait()
    scope.close()
    with pytest.raises(TransportError) as caught:
        await racing
    assert caught.value.reason is FailureReason.CLOSED
    assert not caught.value.maybe_applied
    with pytest.raises(TransportError):
        await scope.race(wait())


def test_scope_that_is_dropped_is_not_kept_by_its_parent():
    parent = Scope()
    child = weakref.ref(Scope(parent))
    gc.collect()
    assert child() is None


def test_child_of_a_closed_scope_has_its_error():
    parent, faulted = Scope(), TransportError("it has faulted", FailureKind.UNAVAILABLE)
    parent.close(lambda _: faulted)
    with pytest.raises(TransportError, match="it has faulted"):
        Scope(parent, "send to orders").check()
    closed = Scope()
    closed.close()
    with pytest.raises(TransportError, match="send to orders: it was closed"):
        Scope(closed, "send to orders").check()


class Guarded(Smallest):
    """As a transport of an earlier release: it keeps its own task, under the name that comes to mind."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.closed = asyncio.Event(), 0
        self._closing: asyncio.Task[None] | None = None

    async def _close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        await self.gate.wait()
        self.closed += 1


async def test_a_close_goes_on_when_its_caller_is_cancelled_and_is_done_once() -> None:
    transport = Guarded()
    first = asyncio.create_task(transport.close())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    transport.gate.set()
    async with asyncio.timeout(60):
        await asyncio.gather(transport.close(), transport.fault(ValueError()))
    assert (transport.closed, transport.fault_cause) == (1, None)


class Releasing(Polling):
    def __init__(self) -> None:
        super().__init__()
        self.scope = Scope()
        self.gate, self.released = asyncio.Event(), 0

    async def _release(self) -> None:
        await self.gate.wait()
        self.released += 1


async def test_a_receiver_releases_once_when_it_closes_although_its_caller_is_cancelled() -> None:
    receiver = Releasing()
    first = asyncio.create_task(receiver.close())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert receiver.scope is not None
    assert receiver.scope.closed
    receiver.gate.set()
    async with asyncio.timeout(60):
        await receiver.close()
        await receiver.close()
    assert receiver.released == 1
