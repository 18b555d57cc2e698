"""The pair: a primary broker, a secondary one, and failover between them."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pairmq.core import PairOptions
from pairmq.core.switch import SwitchAction, SwitchReport
from pairmq.model import ConfigurationError, Entity, EntityKind, EntityState, PairClosed, Source, TransportError
from pairmq.model.events import Event
from pairmq.pair import _active
from pairmq.pair._arguments import seconds
from pairmq.pair._audience import Audience, observers_of
from pairmq.pair._consumer import PairConsumer, checked_prefetch
from pairmq.pair._continuity import ContinuousReceiver
from pairmq.pair._outbox import PairOutbox
from pairmq.pair._readiness import Readiness, find_readiness
from pairmq.pair._receiver import PairDelivery, PairReceiver
from pairmq.pair._sender import PairSender
from pairmq.pair._settings import (
    PREFIX,
    check_available,
    check_continuity,
    check_destination,
    chosen_queues,
    load_settings,
    named_in_environment,
    transports_at,
)
from pairmq.plugins import Observer, Registry, registry
from pairmq.runner import Agreement, Clock, Engine
from pairmq.transport import Transport, start_task

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

_NO_LOOP = (
    "no event loop of asyncio runs here, and a pair needs one: use asyncio.run, or, where another library's loop runs,"
    " pairmq.sync in one of its worker threads"
)


class Pair:
    """A primary broker and a secondary one that takes over when it fails, for all entities of the primary.

    Make one with `Pair.connect` and use it as an async context manager, or await it and `close` it. A pair belongs to
    the event loop that opened it; calls from another loop raise `RuntimeError`. Any number of tasks may share a pair.
    """

    def __init__(
        self,
        primary: Transport,
        secondary: Transport,
        options: PairOptions | None = None,
        *,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        syphon_queues: Iterable[int] | None = None,
    ) -> None:
        sides: dict[str, object] = {"primary": primary, "secondary": secondary}
        for name, side in sides.items():
            if not isinstance(side, Transport):
                kind = type(side).__name__
                raise ConfigurationError(f"{name} is a value of type {kind}: give a transport, or URLs to Pair.connect")
        self._options = PairOptions() if options is None else options
        check_available(self._options, secondary)
        self._syphon_queues = chosen_queues(syphon_queues, self._options)
        self._primary = primary
        self._secondary = secondary
        self._clock = clock or Clock()
        name = f"{primary.endpoint.name}>{secondary.endpoint.name}"
        self._audience = Audience(name, self._clock, observers)
        self._emit = self._audience.emit
        self._engine: Engine | None = None
        self._claimed = False  # until then its connections may be another pair's
        self._opening: asyncio.Task[None] | None = None
        self._openers = 0
        self._undoing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it was opened
        self._ending: asyncio.Task[None] | None = None

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
        clock: Clock | None = None,
        syphon_queues: Iterable[int] | None = None,
        **overrides: Any,
    ) -> Pair:
        """Make a pair, to be opened by ``async with`` or ``await``.

        Args:
            primary: the primary's URL, whose scheme selects the transport, or a transport; by default from the
                settings.
            secondary: likewise.
            options: all options; or omit it and set single ones in ``overrides``, which are merged with the settings.
            config: a TOML file with a ``[pair]`` table, overridden by the ``PAIRMQ_*`` variables and by arguments.
                Default: ``PAIRMQ_CONFIG``, which is not read if both brokers and ``options`` are given.
            observers: receive every event, in addition to those of installed plugins, and those named in the settings
                or ``PAIRMQ_OBSERVERS``; objects or names: ``"opentelemetry"``, or a plugin's.
            journal: the directory of a journal of all events, or a journal that is shared with other pairs. Default:
                the settings or ``PAIRMQ_JOURNAL``, else none. Needs ``pairmq[journal]``.
            plugins: where transports are looked up.
            clock: time and randomness, for simulations.
            syphon_queues: indexes of the backlog queues that this process's syphon drains, to share the work among
                processes; only these are checked, and created if missing. Default: all.
            overrides: options by name, as in `PairOptions`.

        Raises:
            ConfigurationError: a setting, a URL or a plugin is invalid or missing; the message says what to do.
        """
        for name, side in (("primary", primary), ("secondary", secondary)):
            if not isinstance(side, str | Transport | None):
                raise ConfigurationError(f"{name} is a value of type {type(side).__name__}: give a URL or a transport")
        urls = [side if isinstance(side, str) else None for side in (primary, secondary)]
        if options is not None and overrides:
            raise ConfigurationError(f"give either options or {', '.join(overrides)}, not both")
        journal = journal or os.environ.get(f"{PREFIX}JOURNAL") or None
        named: tuple[str, ...] = named_in_environment()
        if config or options is None or primary is None or secondary is None:
            # A transport given by the caller needs no URL: use a placeholder.
            settings = load_settings(
                primary="given://" if isinstance(primary, Transport) else urls[0],
                secondary="given://" if isinstance(secondary, Transport) else urls[1],
                config=config,
                overrides=overrides,
            )
            options = settings.options if options is None else options
            primary = primary or settings.primary
            secondary = secondary or settings.secondary
            journal = journal or settings.journal
            named = settings.observers
        transports = transports_at(primary, secondary, plugins)
        check_available(options, transports[1])  # before observers are made, which may open files
        pumped = chosen_queues(syphon_queues, options)
        watching = observers_of(observers, named, journal, plugins)
        return cls(transports[0], transports[1], options, observers=watching, clock=clock, syphon_queues=pumped)

    # Life.

    async def open(self) -> Self:
        """Create the backlog queues, and start the syphon if it is enabled (SPEC 5.1). Idempotent.

        Neither broker has to be reachable: an unavailable secondary is retried later, the primary is contacted by the
        first send.

        Raises:
            ConfigurationError: this pair contradicts another one of the process (SPEC 9.3).
            TransportError: the secondary refuses to create the backlog queues.
            PairClosed, PairFaulted: it was closed, or has faulted, or opening it was cancelled: a pair opens only once.
            RuntimeError: no event loop of asyncio runs, but another library's, such as trio's.

        Cancelling the call cancels the opening, unless other callers wait for it, and leaves nothing behind.
        """
        if self._ending is not None:
            raise PairClosed("the pair is closed: make a new one")
        if self._opening is None:
            self._loop = asyncio._get_running_loop()
            if self._loop is None:
                raise RuntimeError(_NO_LOOP)
            self._opening = start_task(self._open(), name="pair open")
        opening = self._opening
        if not opening.done():
            await self._wait_for(opening)
        if opening.cancelled():
            raise PairClosed("the pair was closed, or its opening was cancelled, before it was open: make a new one")
        opening.result()
        self._opened.check_here()
        return self

    async def _wait_for(self, opening: asyncio.Task[None]) -> None:
        self._openers += 1
        try:
            await asyncio.wait((opening,))
        except asyncio.CancelledError:
            # Other callers may be waiting; the last one to be cancelled undoes the opening, even if it has just
            # finished, and although it is cancelled again, as by anyio at each await.
            if self._openers == 1:
                opening.cancel()
                await asyncio.shield(start_task(self._undo(opening), name="pair undo", keep=self._undoing))
            raise
        finally:
            self._openers -= 1

    async def _undo(self, opening: asyncio.Task[None]) -> None:
        await asyncio.wait((opening,))
        if not opening.cancelled() and opening.exception() is None:
            await self.close()

    async def _open(self) -> None:
        try:
            _active.claim(self._primary, self._secondary)
            self._claimed = True
            self._engine = await self._started()
        except BaseException:
            await self._audience.end()  # a pair that did not open is never closed
            raise

    async def _started(self) -> Engine:
        engine = None
        try:
            engine = Engine(self._primary, self._secondary, self._options, self._clock, self._emit, self._syphon_queues)
            await engine.start()
        except BaseException:
            _active.release(self._primary, self._secondary)
            if engine is not None:
                await engine.close()
            await self._primary.close()
            await self._secondary.close()
            raise
        return engine

    async def close(self) -> None:
        """Close the pair: sends in flight get ``close_grace``, then end as unknown; both connections close (SPEC 9.1).

        Idempotent; never raises and never hangs, regardless of brokers and observers. Cancelling the call does not stop
        the closing. A pair that was never opened, or could not be, closes only its connections, except those of another
        pair. In a process that was forked from the one that opened the pair, nothing is closed.
        """
        if self._engine is not None and self._engine.is_inherited:
            return
        loop = self._loop
        if loop is not None and loop.is_running() and loop is not asyncio.get_running_loop():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), loop))
            return
        if self._ending is None:
            self._ending = start_task(self._end(), name="pair end")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        # Tasks and connections of a loop that is closed ended with it: none of them can be awaited.
        if self._loop is None or not self._loop.is_closed():
            await self._end_connections()
        if self._claimed:
            _active.release(self._primary, self._secondary)
        await self._audience.end()

    async def _end_connections(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._engine is not None:
            await self._engine.close()
        else:
            own = [side for side in (self._primary, self._secondary) if self._claimed or not _active.holds(side)]
            await asyncio.gather(*(side.close() for side in own), return_exceptions=True)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Messages.

    def sender(self, path: str, *, kind: str = "queue") -> PairSender:
        """Make a sender to an entity; no IO.

        Args:
            path: the queue's or topic's path on the primary.
            kind: ``"queue"`` or ``"topic"``.

        Raises:
            ConfigurationError: the path is invalid, or the primary's transport does not support this kind, or the
                syphon would dead-letter diverted messages: the entity is not in ``allowed_entities``, is internal to
                the broker, or has the name of a backlog queue (SPEC 5.8); or ``continuity`` names a topic (SPEC 11.6).
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
            RuntimeError: in another event loop than the pair's, or in none.
        """
        entity = self._entity(path, kind)
        engine = self._opened
        check_destination(entity, self._options, self._primary)
        check_continuity(entity, self._options)
        try:
            state = engine.sender_state(entity)
        except TransportError as error:
            subject = f"entity {entity}: "  # which some transports say, too
            raise ConfigurationError(subject + str(error).removeprefix(subject)) from error
        return PairSender(engine, entity, state, self._options.send_timeout, self._audience.tracing)

    def outbox(self, path: str, *, kind: str = "queue") -> PairOutbox:
        """Make what sends to an entity when a transaction of the caller's database commits (SPEC 12); no IO.

        Args:
            path: the queue's or topic's path on the primary.
            kind: ``"queue"`` or ``"topic"``.

        Raises:
            ConfigurationError: as `sender`, or the secondary is not a database with transactions.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        entity = self._entity(path, kind)
        engine = self._opened
        check_destination(entity, self._options, self._primary)
        return PairOutbox(engine, entity)

    def receiver(
        self, path: str, *, subscription: str | None = None, dead_letter: bool = False, prefetch: int = 1
    ) -> PairReceiver:
        """Make a receiver of the primary; no IO.

        That of a queue with ``continuity`` reads the queue's lane on the secondary as well, and goes on while either
        can be read (SPEC 11.3).

        Args:
            path: the queue's or topic's path.
            subscription: the subscription to read, which makes ``path`` a topic.
            dead_letter: read its dead-letter queue.
            prefetch: messages that an iteration locks in one receive, of each side where it reads two; all must be
                settled before their locks expire.

        Raises:
            ConfigurationError: a name is invalid, or the primary's transport does not support this source, or
                ``continuity`` names a topic (SPEC 11.6).
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
        """
        entity = self._entity(path, "queue" if subscription is None else "topic")
        if type(prefetch) is not int or prefetch < 1:
            raise ConfigurationError(f"prefetch is {prefetch!r}: it must be a whole number of at least 1")
        engine = self._opened
        engine.check_open()
        check_continuity(entity, self._options)
        try:
            source = Source(entity, subscription, dead_letter)
            lane = None if dead_letter else engine.backlog.lane(entity)
            if lane is not None:
                return ContinuousReceiver(engine, source, lane, prefetch, self._clock)
            return PairReceiver(engine, engine.primary, source, prefetch, self._clock)
        except (TransportError, ValueError) as error:
            raise ConfigurationError(str(error)) from error

    def consumer(
        self,
        path: str,
        on_message: Callable[[PairDelivery], object],
        *,
        prefetch: int = 0,
        on_end: Callable[[Exception], object] | None = None,
        **source: Any,
    ) -> PairConsumer:
        """Begin to read a source ahead, for client libraries and workers that are given messages.

        Locks of what it gives are renewed until each message is settled by its own methods.

        Args:
            path: the queue's or topic's path.
            on_message: called on the pair's event loop with each delivery; must return at once. If it raises, the
                consumer ends, and releases this delivery and those that it had not given yet.
            prefetch: unsettled messages at most, which `PairConsumer.prefetch` changes; 0 for any number.
            on_end: called once if it ends by itself: with `PairClosed` or `PairFaulted`, or with what ``on_message``
                raised.
            source: ``subscription`` and ``dead_letter``, as of `receiver`.

        Returns:
            The consumer, which reads already; close it.

        Raises:
            ConfigurationError: as `receiver`; or ``prefetch`` is below 0.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
            RuntimeError: in another event loop than the pair's.
            TypeError: ``on_message`` can't be called, or is a coroutine function, which would not run.
        """
        self._opened.check_here()
        checked_prefetch(prefetch)
        _check_called("on_message", on_message)
        receiver = self.receiver(path, **source)
        return PairConsumer(self._opened, receiver, on_message, prefetch, on_end, self._clock)

    # State and operations.

    def state(self, path: str, *, kind: str = "queue") -> EntityState:
        """The state of an entity in this process; one that it never used is healthy (SPEC 4).

        Once the pair has ended, the one it had then.
        """
        return self._opened.state(self._entity(path, kind))

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of the entities that this process uses or used recently (SPEC 4.10).

        Includes all that are not healthy, and about a thousand healthy ones without a sender. Once the pair has ended,
        those it had then.
        """
        return self._opened.states()

    async def check(self, *entities: str | Entity, timeout: float = 5.0) -> Readiness:
        """Check with the brokers whether sends would be accepted now; for readiness probes.

        An entity is ready if the primary accepts its messages, or, when it is unavailable or failed over, a backlog
        queue does. What the primary refuses, such as a missing queue, is never diverted and so not ready (SPEC 3.6).
        The entities' states do not change.

        Args:
            entities: paths of queues, or entities. Default: all of `states`; if there are none, the pair is ready if
                the primary responds or a backlog queue accepts messages.
            timeout: seconds for each broker to respond.

        Returns:
            One entry per entity: which broker accepts its messages, or why none does.

        Raises:
            ConfigurationError: a path is invalid.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
            TypeError, ValueError: ``timeout`` is not a number, or not above 0.

        A cancelled check leaves nothing behind.
        """
        engine = self._opened
        engine.check_here()
        asked = [one if isinstance(one, Entity) else self._entity(one, "queue") for one in entities]
        limit = seconds("timeout", timeout)
        return await find_readiness(engine, self.name, asked or list(engine.states()), limit)

    async def agreement(self, *, everywhere: bool = False, timeout: float = 5.0) -> Agreement:
        """Check in the secondary whether the processes of this pair agree, and whether any backlog is not drained.

        The syphon of this process then also drains the queues found to be in use by other processes (SPEC 13.2).

        Args:
            everywhere: also look for backlog queues under other names of the primary, by listing all queues of the
                secondary.
            timeout: seconds that each operation may take.

        Returns:
            Options that differ and queues that are not drained, or why this could not be determined.

        Raises:
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
            TypeError, ValueError: ``timeout`` is not a number, or not above 0.

        A cancelled call leaves nothing behind.
        """
        engine = self._opened
        engine.check_here()
        return await engine.agreement(seconds("timeout", timeout), everywhere=everywhere)

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events from this call on, until the pair closes, `aclose` is called or the iterator is
        dropped.

        A reader that is too slow misses the oldest, and gets a `Warned` event. A cancelled wait misses none; iteration
        may continue.

        Raises:
            RuntimeError: in another event loop than the pair's, or in none, once it is open.
        """
        if self._engine is not None:
            self._engine.check_loop()
        return self._audience.events()

    def subscribe(self, sink: Callable[[Event], None], *, per_message: bool = True) -> Callable[[], None]:
        """Call ``sink`` with every event from now on, synchronously; returns a function that unsubscribes it.

        Args:
            sink: must be fast, as sends wait for it; its exceptions are reported once and ignored.
            per_message: include the events of single messages, at a cost for every send and every moved message.

        Raises:
            TypeError: ``sink`` can't be called, or is a coroutine function, which would not run.
        """
        _check_called("sink", sink)
        self._emit.add(sink, per_message=per_message)
        return lambda: self._emit.remove(sink)

    def mark_healthy(self, path: str, *, kind: str = "queue") -> None:
        """Send to the primary again, by an operator's decision (SPEC 4.7); also ends a `hold`."""
        self._opened.operator(self._entity(path, kind), "mark_healthy")

    def force_failover(self, path: str, *, kind: str = "queue") -> None:
        """Divert from now on; pings begin after one ``ping_primary_interval`` and may end it (SPEC 4.7)."""
        self._opened.operator(self._entity(path, kind), "force_failover")

    def hold(self, path: str, *, kind: str = "queue", syphon: bool = False) -> None:
        """Divert until `mark_healthy` or `force_failover`, without pings (SPEC 4.7).

        As with these two, any name is taken, also before the first send. If it is like that of an entity that this
        process uses, and this one it does not, there is a `Warned` event.

        Args:
            path: the entity's.
            kind: ``queue`` or ``topic``.
            syphon: keep this process's syphon from delivering to the entity too: see `syphon_holds`. Otherwise a syphon
                continues to drain the entity's backlog.

        Raises:
            ConfigurationError: ``syphon`` in a process without one (nothing is held), or the path is invalid.
            PairClosed, PairFaulted: the pair has ended.
        """
        self._opened.operator(self._entity(path, kind), "hold", syphon=syphon)

    async def switch(
        self,
        action: SwitchAction | str,
        *paths: str,
        kind: str = "queue",
        syphon: bool = False,
        timeout: float | None = None,
        unknown: bool = False,
    ) -> SwitchReport:
        """Decide for all processes of this pair, as ``pairmq switch`` does, and wait until they follow (SPEC 13.4).

        The decision is kept on the secondary: also processes that start later follow it, and the primary may be
        unavailable. The last decision of an entity is in force.

        Args:
            action: ``"hold"`` diverts until another decision, ``"failover"`` diverts until a ping succeeds,
                ``"resume"`` sends to the primary again.
            paths: the entities'.
            kind: of all of them, ``"queue"`` or ``"topic"``.
            syphon: of a hold: no syphon of the pair delivers to these entities either.
            timeout: seconds to wait for the processes; 0 does not wait. Default: the longest ``control_interval`` of
                any of them, and 2 s.
            unknown: take names that the primary does not know. By default it is asked for those that this process does
                not use and that no decision diverts, for 5 s at most; if it can't say, the decision is made all the
                same, with a `Warned` event.

        Returns:
            Which processes follow and which do not, and what has overruled the decision.

        Raises:
            ConfigurationError: an argument is invalid, the entities are too many for one decision, or the primary does
                not know one of them; the text has the names that are like it. Nothing has changed.
            TransportError: the secondary could not be asked: nothing has changed, unless the error has
                ``maybe_applied``, or was raised while waiting.
            PairClosed, PairFaulted: the pair has ended; one that is not open yet is a `ConfigurationError`.
            TypeError, ValueError: ``timeout`` is not a number, or below 0.

        A cancelled call leaves the decision in force if it was written.
        """
        engine = self._opened
        engine.check_here()
        entities = [self._entity(path, kind) for path in paths]
        limit = None if timeout is None else seconds("timeout", timeout, zero=True)
        return await engine.switch(action, entities, syphon=syphon, timeout=limit, unknown=unknown)

    @property
    def syphon_holds(self) -> frozenset[Entity]:
        """Entities to which this process's syphon does not deliver, because of `hold` with ``syphon=True``."""
        syphon = self._opened.syphon
        return frozenset() if syphon is None else syphon.gates.held

    @property
    def options(self) -> PairOptions:
        """The pair's options."""
        return self._options

    @property
    def name(self) -> str:
        """``primary>secondary``, as events carry it."""
        return self._emit.pair

    @property
    def primary(self) -> Transport:
        """The primary's transport, whose ``admin`` creates queues."""
        return self._primary

    @property
    def secondary(self) -> Transport:
        """The secondary's transport."""
        return self._secondary

    @property
    def backlog_queues(self) -> tuple[Entity, ...]:
        """The backlog queues on the secondary, in order of their index; lanes come last (SPEC 11.2).

        In a process with a syphon, followed by those that only other processes use (SPEC 13.2).
        """
        backlog = self._opened.backlog
        return backlog.queues + backlog.others

    @property
    def outbox_queue(self) -> Entity | None:
        """The queue of the outbox on the secondary; None if the secondary can't have one."""
        outbox = self._opened.outbox
        return None if outbox is None else outbox.queue

    @property
    def moved(self) -> int:
        """Messages that this process's syphon has moved to the primary; 0 without one."""
        syphon = self._opened.syphon
        return 0 if syphon is None else syphon.moved

    @property
    def outbox_moved(self) -> int:
        """Of `moved`, those of the outbox."""
        syphon = self._opened.syphon
        return 0 if syphon is None else syphon.outbox_moved

    @property
    def in_flight(self) -> int:
        """Sends in flight now."""
        return self._opened.sends.in_flight

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pair can't be copied or pickled: connect one in each process, with the same URLs")

    def __repr__(self) -> str:
        return f"Pair(primary={self._primary.endpoint.url!r}, secondary={self._secondary.endpoint.url!r})"

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ConfigurationError("the pair is not open: use 'async with Pair.connect(...) as pair' or await it")
        return self._engine

    def _entity(self, path: str, kind: str) -> Entity:
        try:
            if kind not in tuple(EntityKind):
                raise ConfigurationError(f"kind is {kind!r}: it must be 'queue' or 'topic'")
            entity = Entity(path, EntityKind(kind))
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        longest = self._primary.capabilities.max_path_length
        if len(path) > longest:
            raise ConfigurationError(f"entity path of {len(path)} characters: the primary takes at most {longest}")
        return entity


def _check_called(name: str, given: object) -> None:
    """Refuse what would not run when it is called: a coroutine that nothing awaits handles nothing."""
    if not callable(given) or inspect.iscoroutinefunction(given):
        raise TypeError(f"{name} is {given!r}: give a function that is not async")
