"""The pair for programs without asyncio, and the administration of its brokers."""

from __future__ import annotations

import atexit
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from pairmq import pair as asynchronous
from pairmq.core import PairOptions
from pairmq.core.switch import SwitchAction, SwitchReport
from pairmq.model import ConfigurationError, Delivery, Entity, EntityState, PairClosed, Source
from pairmq.model.events import Event
from pairmq.plugins import Observer, Registry, registry
from pairmq.sync._loop import PerProcess, finish, run
from pairmq.sync._receiver import PairReceiver
from pairmq.sync._sender import PairOutbox, PairSender
from pairmq.transport import Admin as AsynchronousAdmin
from pairmq.transport import Endpoint, QueueCounts, QueueProperties, Transport

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

T = TypeVar("T")


class Side:
    """One of a pair's two brokers.

    Args:
        attached: gives the open pair.
        of: its transport.
        endpoint: the broker.
    """

    def __init__(
        self,
        attached: Callable[[], Awaitable[asynchronous.Pair]],
        of: Callable[[asynchronous.Pair], Transport],
        endpoint: Endpoint,
    ) -> None:
        self._attached = attached
        self._of = of
        self._endpoint = endpoint

    @property
    def endpoint(self) -> Endpoint:
        """The broker."""
        return self._endpoint

    @property
    def admin(self) -> Admin:
        """Its administration."""

        async def admin() -> AsynchronousAdmin:
            return self._of(await self._attached()).admin

        return Admin(admin)

    def __repr__(self) -> str:
        return f"Side({self._endpoint.url!r})"


class Admin:
    """Manages a broker's entities; every method as that of `pairmq.transport.Admin`, blocking.

    Args:
        attached: gives the administration of the open pair's transport.
    """

    def __init__(self, attached: Callable[[], Awaitable[AsynchronousAdmin]]) -> None:
        self._attached = attached

    def check(self) -> None:
        """Make one round trip to the broker."""
        self._run(lambda admin: admin.check())

    def exists(self, entity: Entity) -> bool:
        """Return whether the entity exists."""
        return self._run(lambda admin: admin.exists(entity))

    def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Make a queue or topic, durable; an existing one is left as it is, and False returned.

        Args:
            entity: what to make.
            properties: settings; None for the broker's defaults with peek-lock and dead-lettering.

        Raises:
            TransportError: it could not be made.
        """
        return self._run(lambda admin: admin.create(entity, properties))

    def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription of a topic that gets every message from now on; as `create`."""
        return self._run(lambda admin: admin.create_subscription(topic, name))

    def properties(self, entity: Entity) -> QueueProperties:
        """Read a queue's settings."""
        return self._run(lambda admin: admin.properties(entity))

    def counts(self, source: Source) -> QueueCounts:
        """Count what a queue or subscription holds."""
        return self._run(lambda admin: admin.counts(source))

    def delete(self, entity: Entity) -> bool:
        """Delete an entity with all it holds; False when it did not exist."""
        return self._run(lambda admin: admin.delete(entity))

    def list_entities(self, prefix: str = "") -> list[Entity]:
        """List the entities whose path starts with ``prefix``."""
        return self._run(lambda admin: admin.list_entities(prefix))

    def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages without locking or changing them."""
        return self._run(lambda admin: admin.peek(source, max_messages))

    def purge(self, source: Source) -> int:
        """Delete the messages of a queue or dead-letter queue, and return their number."""
        return self._run(lambda admin: admin.purge(source))

    def probe(self, entity: Entity) -> None:
        """Find out whether the entity accepts writes, in a way that no consumer sees."""
        self._run(lambda admin: admin.probe(entity))

    def _run(self, operation: Callable[[AsynchronousAdmin], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            return await operation(await self._attached())

        return run(asked())


class Pair:
    """A primary broker and a secondary one, as `pairmq.Pair`, for blocking code.

    Make one with `Pair.connect` and use it as a context manager, or `open` and `close` it yourself; one that is still
    open when the process ends is closed then. Any number of threads may share it, with its senders and receivers.

    A forked child that inherits an open pair opens its own, with the same settings, at its first call; operations in
    flight stay with the parent.
    """

    def __init__(self, make: Callable[[], asynchronous.Pair], *, renewable: bool = True) -> None:
        self._make = make
        self._renewable = renewable
        self._inner = PerProcess(make())
        self._opened = False
        self._closed = False

    @classmethod
    def connect(
        cls,
        primary: str | Transport | None = None,
        secondary: str | Transport | None = None,
        *,
        options: PairOptions | None = None,
        config: str | os.PathLike[str] | None = None,
        observers: Iterable[Observer | str] = (),
        journal: str | os.PathLike[str] | Journal | None = None,
        plugins: Registry = registry,
        **overrides: Any,
    ) -> Pair:
        """Make a pair, to be opened by ``with`` or `open`.

        Args:
            primary: the primary's URL, or a transport; by default from the settings.
            secondary: likewise. A pair made from transports can't be used after a fork.
            options: all options; or omit it and set single ones in ``overrides``.
            config: a TOML file with a ``[pair]`` table, as for `pairmq.Pair.connect`.
            observers: receive every event, in the thread of the event loop, so they must not block; objects or names,
                as for `pairmq.Pair.connect`.
            journal: the directory of a journal of all events, or a journal that is shared with other pairs. Needs
                ``pairmq[journal]``.
            plugins: where transports are looked up.
            overrides: options by name, as in `PairOptions`.

        Raises:
            ConfigurationError: a setting, a URL or a plugin is invalid or missing; the message says what to do.
        """
        given: object = observers  # the pair refuses what can't be any
        watching = tuple(observers) if isinstance(given, Iterable) and not isinstance(given, str) else observers

        def make() -> asynchronous.Pair:
            return asynchronous.Pair.connect(
                primary,
                secondary,
                options=options,
                config=config,
                observers=watching,
                journal=journal,
                plugins=plugins,
                **overrides,
            )

        return cls(make, renewable=not any(isinstance(side, Transport) for side in (primary, secondary)))

    # Life.

    def open(self) -> Self:
        """Create the backlog queues, and start the syphon if it is enabled (SPEC 5.1). Idempotent.

        Raises:
            ConfigurationError: this pair contradicts another one of the process (SPEC 9.3).
            TransportError: the secondary refuses to create the backlog queues.
            PairClosed, PairFaulted: it was closed, or has faulted: a pair opens only once.
        """
        run(self._open())
        return self

    async def _open(self) -> None:
        if self._closed:
            raise PairClosed("the pair is closed: make a new one")
        if not self._opened:
            self._opened = True
            # Registered after the journal's own handler, so that it runs before: the end of the pair is journalled too.
            atexit.register(self.close)
        await self._attached()

    def close(self) -> None:
        """Close the pair in this process: sends in flight get ``close_grace``, then end as unknown (SPEC 9.1).

        Idempotent; never raises and never hangs. An interruption does not stop the closing.
        """
        self._closed = True
        atexit.unregister(self.close)
        if self._inner.is_here:
            run(self._inner.value.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    # Messages.

    def sender(self, path: str, *, kind: str = "queue") -> PairSender:
        """Make a sender to an entity; no IO.

        Args:
            path: the queue's or topic's path on the primary.
            kind: ``"queue"`` or ``"topic"``.

        Raises:
            ConfigurationError: the path is invalid, or the primary's transport does not support this kind, or the
                syphon would dead-letter what is diverted, as for `pairmq.Pair.sender`.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        return PairSender(self._attached, path, kind)

    def outbox(self, path: str, *, kind: str = "queue") -> PairOutbox:
        """Make what sends to an entity when a transaction of the caller's database commits, as `pairmq.Pair.outbox`.

        Args:
            path: the queue's or topic's path on the primary.
            kind: ``"queue"`` or ``"topic"``.

        Raises:
            ConfigurationError: as `sender`, or the secondary is not a database with transactions.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        return PairOutbox(self._attached, path, kind)

    def receiver(
        self, path: str, *, subscription: str | None = None, dead_letter: bool = False, prefetch: int = 1
    ) -> PairReceiver:
        """Make a receiver of the primary; no IO.

        Args:
            path: the queue's or topic's path.
            subscription: the subscription to read, which makes ``path`` a topic.
            dead_letter: read its dead-letter queue.
            prefetch: messages that an iteration locks in one receive; all must be settled before their locks expire.

        Raises:
            ConfigurationError: a name is invalid, or the primary's transport does not support this source.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        return PairReceiver(self._attached, path, subscription=subscription, dead_letter=dead_letter, prefetch=prefetch)

    # State and operations.

    def state(self, path: str, *, kind: str = "queue") -> EntityState:
        """The state of an entity in this process; one that it never used is healthy (SPEC 4).

        Once the pair has ended, the one it had then.
        """
        return self._asked(lambda pair: pair.state(path, kind=kind))

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of the entities that this process uses or used recently (SPEC 4.10).

        Includes all that are not healthy, and about a thousand healthy ones without a sender. Once the pair has ended,
        those it had then.
        """
        return self._asked(lambda pair: dict(pair.states()))

    def check(self, *entities: str | Entity, timeout: float = 5.0) -> asynchronous.Readiness:
        """Ask the brokers whether sends would be accepted now, as `pairmq.Pair.check`.

        Args:
            entities: paths of queues, or entities; without any, all of `states`.
            timeout: seconds for each broker to respond.

        Raises:
            ConfigurationError: a path is invalid.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        return self._awaited(lambda pair: pair.check(*entities, timeout=timeout))

    def events(self) -> Iterator[Event]:
        """Iterate over the events from this call on, until the pair closes or the iterator is dropped.

        A reader that is too slow misses the oldest, and gets a `Warned` event.
        """
        return self._iterate(PerProcess(self._asked(lambda pair: pair.events())))

    def _iterate(self, events: PerProcess[Any]) -> Iterator[Event]:
        try:
            while events.is_here and (event := run(_next(events.value))) is not None:
                yield event
        finally:
            if events.is_here:
                finish(events.value.aclose())

    def subscribe(self, sink: Callable[[Event], None]) -> Callable[[], None]:
        """Give ``sink`` every event from now on, in the thread of the event loop; returns what ends that.

        Args:
            sink: must be fast, as sends wait for it; its exceptions are reported once and ignored. A forked child's
                events do not reach it.
        """
        end = self._asked(lambda pair: pair.subscribe(sink))

        async def ended() -> None:
            end()

        return lambda: run(ended())

    def mark_healthy(self, path: str, *, kind: str = "queue") -> None:
        """Send to the primary again, by an operator's decision (SPEC 4.7); also ends a `hold`."""
        self._asked(lambda pair: pair.mark_healthy(path, kind=kind))

    def force_failover(self, path: str, *, kind: str = "queue") -> None:
        """Divert from now on; pings begin after one ``ping_primary_interval`` and may end it (SPEC 4.7)."""
        self._asked(lambda pair: pair.force_failover(path, kind=kind))

    def hold(self, path: str, *, kind: str = "queue", syphon: bool = False) -> None:
        """Divert until `mark_healthy` or `force_failover`, without pings; as `pairmq.Pair.hold` (SPEC 4.7).

        Args:
            path: the entity's.
            kind: ``queue`` or ``topic``.
            syphon: keep this process's syphon from delivering to the entity too.

        Raises:
            ConfigurationError: ``syphon`` in a process without one (nothing is held), or the path is invalid.
            PairClosed, PairFaulted: the pair has ended.
        """
        self._asked(lambda pair: pair.hold(path, kind=kind, syphon=syphon))

    def switch(
        self,
        action: SwitchAction | str,
        *paths: str,
        kind: str = "queue",
        syphon: bool = False,
        timeout: float | None = None,
        unknown: bool = False,
    ) -> SwitchReport:
        """Decide for all processes of this pair, and wait until they follow, as `pairmq.Pair.switch` (SPEC 13.4).

        Args:
            action: ``"hold"``, ``"failover"`` or ``"resume"``.
            paths: the entities'.
            kind: of all of them, ``"queue"`` or ``"topic"``.
            syphon: of a hold: no syphon of the pair delivers to these entities either.
            timeout: seconds to wait for the processes; 0 does not wait.
            unknown: take names that the primary does not know.

        Raises:
            ConfigurationError: an argument is invalid, or the primary does not know one of the entities.
            TransportError: the secondary could not be asked.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        return self._awaited(
            lambda pair: pair.switch(action, *paths, kind=kind, syphon=syphon, timeout=timeout, unknown=unknown)
        )

    @property
    def syphon_holds(self) -> frozenset[Entity]:
        """Entities to which this process's syphon does not deliver, because of `hold` with ``syphon=True``."""
        return self._asked(lambda pair: pair.syphon_holds)

    def agreement(self, *, everywhere: bool = False, timeout: float = 5.0) -> asynchronous.Agreement:
        """Ask the secondary whether the processes of this pair agree, as `pairmq.Pair.agreement`.

        Args:
            everywhere: look also for backlog queues under other names of the primary.
            timeout: seconds that each operation may take.

        Raises:
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        return self._awaited(lambda pair: pair.agreement(everywhere=everywhere, timeout=timeout))

    @contextmanager
    def beside(self, make: Callable[[asynchronous.Pair], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Keep something that needs an event loop, as a dashboard does, running beside the pair while the block lasts.

            with pair.beside(lambda inner: pairmq.dashboard.serving(inner, port=8765)) as address:
                ...

        Args:
            make: called on the pair's loop, in its thread, with the pair there; what it gives is entered and left on
                that loop, by two tasks, and must not block.

        Raises:
            Exception: raised on entering.

        What interrupts the wait for either cancels it. A forked child gets nothing of it and leaves the parent's alone,
        but for sockets that it inherits.
        """

        async def enter() -> tuple[AbstractAsyncContextManager[T], T]:
            manager = make(await self._attached())
            return manager, await manager.__aenter__()

        async def leave(entered: tuple[AbstractAsyncContextManager[T], T]) -> None:
            await entered[0].__aexit__(None, None, None)

        kept = PerProcess(run(enter(), unwanted=leave))
        try:
            yield kept.value[1]
        finally:
            if kept.is_here:
                run(leave(kept.value))

    @property
    def options(self) -> PairOptions:
        """The pair's options."""
        return self._inner.value.options

    @property
    def name(self) -> str:
        """``primary>secondary``, as events carry it."""
        return self._inner.value.name

    @property
    def primary(self) -> Side:
        """The primary, whose ``admin`` makes queues."""
        return Side(self._attached, lambda pair: pair.primary, self._inner.value.primary.endpoint)

    @property
    def secondary(self) -> Side:
        """The secondary."""
        return Side(self._attached, lambda pair: pair.secondary, self._inner.value.secondary.endpoint)

    @property
    def backlog_queues(self) -> tuple[Entity, ...]:
        """The backlog queues on the secondary, in order of their index."""
        return self._asked(lambda pair: pair.backlog_queues)

    @property
    def outbox_queue(self) -> Entity | None:
        """The queue of the outbox on the secondary; None if the secondary can't have one."""
        return self._asked(lambda pair: pair.outbox_queue)

    @property
    def moved(self) -> int:
        """Messages that this process's syphon has moved to the primary; 0 without one."""
        return self._asked(lambda pair: pair.moved)

    @property
    def outbox_moved(self) -> int:
        """Of `moved`, those of the outbox."""
        return self._asked(lambda pair: pair.outbox_moved)

    @property
    def in_flight(self) -> int:
        """Sends in flight now, of all threads."""
        return self._asked(lambda pair: pair.in_flight)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pair can't be copied or pickled: connect one in each process, with the same URLs")

    def __repr__(self) -> str:
        return repr(self._inner.value)

    def _asked(self, question: Callable[[asynchronous.Pair], T]) -> T:
        async def ask() -> T:
            return question(await self._attached())

        return run(ask())

    def _awaited(self, operation: Callable[[asynchronous.Pair], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            return await operation(await self._attached())

        return run(ask())

    async def _attached(self) -> asynchronous.Pair:
        if not self._opened:
            raise ConfigurationError("the pair is not open: use 'with Pair.connect(...) as pair' or call open()")
        if self._closed and not self._inner.is_here:
            raise PairClosed("the pair is closed: make a new one")
        inner = self._inner.get(self._renewed)
        if not self._closed:
            await inner.open()
        return inner

    def _renewed(self) -> asynchronous.Pair:
        if not self._renewable:
            raise ConfigurationError(
                "the pair was made with transports of its own before this process was forked: make it after the fork, "
                "or give URLs"
            )
        return self._make()


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)
