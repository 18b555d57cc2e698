"""What all suites have in common: a broker for each test, in the words that tests use, and an end for each test.

`Limits` are how long the suites wait: shorter where a test was seen to pass in less, and a defect is looked for. What a
transport claims and what it disclaims are both tested, by one mechanism; neither removes a test.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Self, TypeVar, cast
from uuid import uuid4

import pytest
import pytest_asyncio

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing.conformance.harness import Harness, Interruption
from pairmq.transport import Admin, Capabilities, QueueCounts, QueueProperties, Receiver, Sender, Transport

LONG_LOCK = 60.0
"""Seconds; for queues of tests in which no lock may end."""
MISSING = Entity("there-is-no-such-queue")
NOT_FOUND = (FailureKind.REFUSED, FailureReason.NOT_FOUND)
NOT_SUPPORTED = (FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
LOCK_LOST = (FailureKind.REFUSED, FailureReason.LOCK_LOST)
CLOSED = (FailureKind.UNAVAILABLE, FailureReason.CLOSED)
_CLOSING = 30.0
Skipped = pytest.skip.Exception
"""Raised where a harness has no way to do what a test asks for."""


@dataclass(frozen=True, slots=True)
class Limits:
    # Within which everything expected happens, even on a slow and busy machine. Nothing waits that long.
    patience: float = 30.0
    # That a broker stays unavailable for a call that should not wait for it; an immediate failure ends the wait.
    outage: float = 5.0
    # That a call may take beyond what it is allowed: not a measure of speed, but of who decides when it ends.
    slack: float = 2.0
    # Within which a receive without waiting has returned, over a link that is open; what waits all the same mostly
    # waits for longer.
    asking_once: float = 2.0
    stall: float = 0.05  # by which the machine is late before that is excused: many small ones delay no waiting call


_LIMITS: ContextVar[Limits] = ContextVar("pairmq conformance limits", default=Limits())  # noqa: B039  # it is frozen


def limits() -> Limits:
    return _LIMITS.get()


@contextmanager
def limited(to: Limits) -> Iterator[None]:
    """Let a block, and the tasks that it starts, keep to other limits."""
    before = _LIMITS.set(to)
    try:
        yield
    finally:
        _LIMITS.reset(before)


class Broker:
    """A broker that runs, and what a test opened there."""

    def __init__(self, harness: Harness, url: str) -> None:
        self.harness = harness
        self.url = url
        self.transport = harness.transport(url)
        self._transports = [self.transport]
        self._numbers = itertools.count(1)
        self._senders: dict[Entity, Sender] = {}
        self._interrupted = False

    @property
    def capabilities(self) -> Capabilities:
        return self.transport.capabilities

    @property
    def admin(self) -> Admin:
        return self.transport.admin

    def connect(self) -> Transport:
        """Make another transport, as another process would; closed at the end of the test."""
        transport = self.harness.transport(self.url)
        self._transports.append(transport)
        return transport

    # Entities and messages.

    async def queue(self, *, short_locks: bool = False, **properties: Any) -> Entity:
        """Make a queue, with locks that outlast a test, or short ones: ask for those before anything is received."""
        if short_locks:
            self._shorten_locks()
        entity = Entity(f"orders-{next(self._numbers)}")
        duration = self.harness.lock_duration if short_locks else LONG_LOCK
        await self.admin.create(entity, QueueProperties(lock_duration=duration, **properties))
        return entity

    def _shorten_locks(self) -> None:
        url = self.harness.with_short_locks(self.url)
        if url != self.url:
            self.url = url
            self.transport = self.connect()

    async def topic(self, *subscriptions: str) -> Entity:
        entity = Entity(f"news-{next(self._numbers)}", EntityKind.TOPIC)
        await self.admin.create(entity)
        for name in subscriptions:
            await self.admin.create_subscription(entity, name)
        return entity

    def sender(self, entity: Entity) -> Sender:
        return self.transport.sender(entity)

    async def connected(self) -> tuple[Entity, Sender]:
        """A queue, and a sender that has sent *before* to it."""
        queue = await self.queue()
        sender = self.sender(queue)
        await sender.send(message("before"))
        return queue, sender

    def receiver(self, of: Entity | Source) -> Receiver:
        return self.transport.receiver(of if isinstance(of, Source) else Source(of))

    async def put(self, entity: Entity, *bodies: str, **fields: Any) -> list[Message]:
        """Send one message after the other, with ids of their own, over one sender that is kept for the whole test."""
        messages = [message(body, **fields) for body in bodies]
        if entity not in self._senders:  # opening one takes some brokers half a second
            self._senders[entity] = self.sender(entity)
        for each in messages:
            await self._senders[entity].send(each)
        return messages

    async def queue_with(self, *bodies: str, **fields: Any) -> Entity:
        """Make a queue that holds messages of these bodies, each with the fields."""
        queue = await self.queue()
        await self.put(queue, *bodies, **fields)
        return queue

    # Faults.

    async def stop(self) -> None:
        await self._interrupt(Interruption.STOP)

    async def freeze(self) -> None:
        """Let the broker take everything and answer nothing."""
        await self._interrupt(Interruption.FREEZE)

    async def crash(self) -> None:
        """End the broker as violently as its harness can."""
        self._interrupted = True
        await self.harness.crash()

    async def refuse_writes(self) -> None:
        """Let the broker store nothing and answer what only reads; skips the test where the harness has no way."""
        self._interrupted = True
        if not await self.harness.refuse_writes():
            self._skip("refuse_writes")

    async def lose_confirms(self) -> None:
        """Let the broker store and not confirm; stop it if it is a library here. Skips where there is no way."""
        if self.harness.in_process:
            await self.stop()
            return
        self._interrupted = True
        if not await self.harness.lose_confirms():
            self._skip("lose_confirms")

    def _skip(self, method: str) -> NoReturn:
        name = type(self.harness).__name__
        pytest.skip(f"{name} can't do this to its broker: implement {name}.{method}() if there is a way")

    async def restore(self) -> None:
        await self.harness.restore()
        self._interrupted = False

    async def _interrupt(self, how: Interruption) -> None:
        self._interrupted = True
        await self.harness.interrupt(how)

    async def end(self) -> None:
        """Bring the broker back and close what the test opened."""
        try:
            if self._interrupted:
                await self.restore()
        finally:
            closing = [asyncio.ensure_future(transport.close()) for transport in self._transports]
            # Tests of closing say what is wrong with it; here it must only not hold up the run.
            await asyncio.wait(closing, timeout=_CLOSING)
            for task in closing:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)


def message(body: str | bytes = "", **fields: Any) -> Message:
    """Make a message with an id of its own."""
    content = body.encode() if isinstance(body, str) else body
    return Message(content, **{"message_id": uuid4().hex, **fields})


async def receive_one(receiver: Receiver, *, wait: float | None = None) -> Delivery:
    """Receive the one message that must come."""
    deliveries = await receiver.receive(1, limits().patience if wait is None else wait)
    assert len(deliveries) == 1, f"received {len(deliveries)} messages where one had to come"
    return deliveries[0]


async def receive_all(receiver: Receiver, count: int, *, complete: bool = False) -> list[Delivery]:
    """Receive this many, in as many calls as needed, and complete them if asked to; fewer if no more arrive."""
    found: list[Delivery] = []
    while len(found) < count and (some := await receiver.receive(count - len(found), limits().patience)):
        found += some
        if complete:
            await receiver.complete_batch(some)
    return found


async def receive_some(receiver: Receiver, most: int) -> list[Delivery]:
    """Receive one, and any others that a receiver gets before settling: there may be none."""
    found = [await receive_one(receiver)]
    while len(found) < most and (some := await receiver.receive(most - len(found), 0.5)):
        found += some
    return found


async def drain(receiver: Receiver, count: int) -> list[Delivery]:
    """Receive and complete this many; fewer if no more arrive."""
    return await receive_all(receiver, count, complete=True)


async def up_to(broker: Broker, queue: Entity, last: str | None, *, least: int = 0) -> list[str]:
    """What a queue gives up to one body or number, and what comes a moment after it."""
    receiver = broker.connect().receiver(Source(queue))
    found: list[str] = []
    while (last is not None and last not in found) or len(found) < least:
        some = await receiver.receive(100, limits().patience)
        assert some, f"{last!r} is lost"
        found += bodies(some)
        await receiver.complete_batch(some)
    return found + bodies(await receiver.receive(100, 0.3))


async def probe(broker: Broker) -> None:
    await broker.admin.probe(await broker.queue())


async def counted(admin: Admin, source: Source, expected: QueueCounts) -> QueueCounts:
    """Ask for counts until they are as expected, or patience ends; the last answer.

    A busy broker may report dead-lettered or copied messages with a delay (RabbitMQ reports 0 for a queue whose leader
    takes longer than 0.25 s). Messages waiting in the queue itself must be reported immediately: don't use this for
    them.
    """
    deadline = asyncio.get_running_loop().time() + limits().patience
    while True:
        counts = await admin.counts(source)
        if counts == expected or asyncio.get_running_loop().time() > deadline:
            return counts
        await asyncio.sleep(0.05)


_TESTABLE = 4 << 20
"""A larger limit than this many bytes is not tried: it would be the machine that fails."""

_UNLIMITED_SIZE = 1 << 20


def testable_limit(broker: Broker) -> int | None:
    """The size of the largest message; None without a limit, or beyond what a test may send."""
    most = broker.capabilities.max_message_bytes
    return most if most is not None and most <= _TESTABLE else None


def of_size(broker: Broker, size: int | None = None) -> Message:
    """A message that measures exactly so much; as much as a test may send where it is left out."""
    if size is None:
        size = testable_limit(broker) or _UNLIMITED_SIZE
    empty = message(b"", message_id="large")
    body = bytes(max(0, size - broker.transport.measure(empty)))
    # A longer body may need a longer length before it: what it measures more is taken off.
    for _ in range(4):
        found = Message(body, message_id="large")
        excess = broker.transport.measure(found) - size
        if not excess:
            return found
        body = bytes(len(body) - excess)
    raise AssertionError(f"no body makes measure() return {size} bytes: it does not count the body byte by byte")


def refusal(broker: Broker, entity: Entity, message: Message) -> TransportError | None:
    """What `check_message` says of a message; None when it lets it pass."""
    try:
        broker.transport.check_message(entity, message)
    except TransportError as error:
        return error
    return None


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


F = TypeVar("F", bound=Callable[..., Awaitable[None]])
Arm = Callable[[Broker], Awaitable[object]]
"""A test of what holds where a capability is disclaimed."""

NAMES = tuple(entry.name for entry in fields(Capabilities))
_MARK = "_pairmq_capabilities"


def capability(name: str, *, disclaimed: Arm) -> Callable[[F], F]:
    """Let a test run where a capability is claimed, and ``disclaimed``, mostly made by `refused`, where it is falsy."""

    def decorate(test: F) -> F:
        @functools.wraps(test)
        async def both(self: object, broker: Broker) -> None:
            claimed = bool(getattr(broker.capabilities, name))
            try:
                await (test(self, broker) if claimed else disclaimed(broker))
            except Exception as error:
                # Which of the two arms it was can't be seen from the test's name.
                error.add_note(f"the transport {'claims' if claimed else 'disclaims'} the capability {name!r}")
                raise

        return cast(F, _marked(both, test, name))  # it is called as the test is

    return decorate


def limit(name: str) -> Callable[[F], F]:
    """Say that a test is about a capability that is a number and not a claim."""
    return lambda test: _marked(test, test, name)


def capabilities_of(test: object) -> frozenset[str]:
    found: frozenset[str] = getattr(test, _MARK, frozenset())
    return found


def refused(*calls: Arm) -> Arm:
    """Make the test that each call is refused as not supported, where it is made or when it is awaited."""

    async def arm(broker: Broker) -> None:
        for call in calls:
            await must_fail(functools.partial(call, broker), *NOT_SUPPORTED)

    return arm


async def must_fail(
    call: Callable[[], Awaitable[object]], kind: FailureKind | None = None, reason: FailureReason | None = None
) -> TransportError:
    """Await a call that must fail in time and in one way, and give the error; any kind and reason if left out."""
    try:
        async with asyncio.timeout(limits().patience):
            answer = await call()
    except TransportError as error:
        failure = error
    else:
        raise AssertionError(f"it returned {answer!r} where it had to fail as {_named(kind, reason)}")
    assert kind in (None, failure.kind) and reason in (None, failure.reason), (
        f"{failure!r}: it had to fail as {_named(kind, reason)}"
    )
    return failure


def _named(*how: FailureKind | FailureReason | None) -> str:
    return ", ".join(each.value for each in how if each) or "anything"


def _marked(marked: F, test: object, name: str) -> F:
    if name not in NAMES:
        raise TypeError(f"Capabilities has no field {name!r}")
    setattr(marked, _MARK, capabilities_of(test) | {name})
    return marked


_MAKING = 300.0
"""Seconds in which a harness must have made its broker, the first boot included."""

_FAREWELL = 5.0
"""Seconds that a test which is cut off has for its own cleaning up."""


class Suite:
    """The base of the suites, whose tests name their loop scope: they run in every mode of pytest-asyncio."""

    pytestmark = pytest.mark.asyncio(loop_scope="function")

    def __init_subclass__(cls, *, needs: str = "", disclaimed: Arm | None = None, **arguments: Any) -> None:
        """Complete the tests; ``needs`` is a capability that they all are about, as by `capability`."""
        super().__init_subclass__(**arguments)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                if disclaimed is not None:
                    test = capability(needs, disclaimed=disclaimed)(test)
                setattr(cls, name, _ending(test, " ".join(filter(None, (test.__doc__, cls.__doc__)))))

    @pytest_asyncio.fixture(loop_scope="function")
    async def broker(self, harness: Harness) -> AsyncIterator[Broker]:
        """A running, empty broker, and the objects that the test opens there."""
        _check_harness(harness)
        try:
            async with asyncio.timeout(_MAKING):
                url = await harness.make()
        except TimeoutError:
            pytest.fail(f"{type(harness).__name__}.make() gave no broker within {_MAKING:g} s", pytrace=False)
        _check_url(harness, url)
        broker = Broker(harness, url)
        try:
            yield broker
        finally:
            await broker.end()


def _ending(test: Callable[..., Awaitable[None]], clause: str) -> Callable[..., Awaitable[None]]:
    """A transport that hangs must fail one test and not hold up the run; a failure names the clause that it breaks."""

    @functools.wraps(test)
    async def limited(self: Suite, *arguments: Any, **fixtures: Any) -> None:
        broker = fixtures.get("broker")
        limit = broker.harness.time_limit if isinstance(broker, Broker) else Harness.time_limit
        running = asyncio.ensure_future(test(self, *arguments, **fixtures))
        try:
            await asyncio.wait((running,), timeout=limit)
            if not running.done():
                where = "\n".join(_awaiting(running.get_coro()))
                running.cancel()
                # Not awaited itself: it may be what swallows cancellations.
                await asyncio.wait((running,), timeout=_FAREWELL)
                pytest.fail(f"still running after {limit:g} s: something hangs, at\n{where}", pytrace=False)
            running.result()
        except (Exception, asyncio.CancelledError, pytest.fail.Exception) as error:
            error.add_note(f"the contract (pairmq.transport): {clause}")
            raise
        finally:
            running.cancel()

    return limited


def _check_harness(harness: object) -> None:
    if not isinstance(harness, Harness):
        pytest.fail(f"the fixture 'harness' gives {harness!r}: it must give a Harness, made and entered", pytrace=False)


def _check_url(harness: Harness, url: object) -> None:
    if not isinstance(url, str):
        pytest.fail(f"{type(harness).__name__}.make() returned {url!r}: it must be the broker's URL", pytrace=False)


def _awaiting(coroutine: Any) -> Iterator[str]:
    """Where a coroutine waits, from the outermost call to the innermost; a task's own stack shows the first alone."""
    while getattr(coroutine, "cr_frame", None) is not None:
        code = coroutine.cr_code
        yield f"  {code.co_filename}:{coroutine.cr_frame.f_lineno} {code.co_qualname}"
        coroutine = coroutine.cr_await


_TICK = 0.02


class Stopwatch:
    """Measures a block, less the time without a processor; in a thread, so that what blocks the loop is not excused."""

    def __init__(self) -> None:
        self._lag = 0.0
        self._stall = limits().stall  # the thread does not see the test's
        self._began = self._ended = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="conformance stopwatch", daemon=True)

    @property
    def elapsed(self) -> float:
        """Seconds, the machine's own lateness taken off."""
        return max(0.0, self._ended - self._began - self._lag)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = time.monotonic()
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            asked = time.monotonic()
            over = self._over.wait(_TICK)
            late = (self._ended if over else time.monotonic()) - asked - _TICK
            if late > self._stall:
                self._lag += late
            if over:
                return


class LockClock:
    """Returns whether a lost lock of so many seconds may have expired because this machine stalled for so long."""

    def __init__(self, lock: float) -> None:
        self._shortest = 0.8 * lock
        self._asked = self._since = time.monotonic()

    def ask(self) -> None:
        """The lock is asked for, or its renewal, from now on."""
        self._asked = time.monotonic()

    def begin(self) -> None:
        """It was given, or renewed, since it was asked for."""
        self._since = self._asked

    @property
    def is_over(self) -> bool:
        """Whether its time may be over."""
        return time.monotonic() - self._since >= self._shortest

    def excuses(self, error: TransportError) -> bool:
        """Whether the error says that a lock is lost whose time may be over: then nothing is proved."""
        return error.reason is FailureReason.LOCK_LOST and self.is_over


async def cut_off(
    call: Awaitable[object], limit: float = 0.3, *, why: str | None = "no broker can have answered"
) -> TimeoutError | None:
    """Limit a call to a silent broker, which must end in time; None if it failed before. ``why`` it can't end well,
    None if it can."""
    timed_out: TimeoutError | None = None
    with Stopwatch() as watch:
        try:
            async with asyncio.timeout(limit):
                answer = await call
        except TimeoutError as timeout:
            timed_out = timeout
        except TransportError as error:
            # A lock may be bound to a connection that an earlier call was cut off from.
            assert error.kind is FailureKind.UNAVAILABLE or error.reason is FailureReason.LOCK_LOST, f"{error!r}"
        else:
            assert why is None, f"it returned {answer!r}, and {why}"
    assert watch.elapsed < limit + limits().slack, (
        f"the call returned {watch.elapsed:.2f} s after the call, whose time limit was {limit} s"
    )
    return timed_out
