"""The pair: a primary broker, a secondary one, and what keeps messages safe between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pairmq.core import PairOptions
from pairmq.model import (
    ConfigurationError,
    Entity,
    EntityKind,
    EntityState,
    PairClosed,
    Source,
    TransportError,
)
from pairmq.model.events import Event
from pairmq.pair import _active
from pairmq.pair._audience import Audience
from pairmq.pair._observers import named_in_environment, observers_of
from pairmq.pair._readiness import Readiness, find_readiness
from pairmq.pair._receiver import PairReceiver
from pairmq.pair._sender import PairSender
from pairmq.pair._settings import PREFIX, check_available, check_destination, check_syphon_queues, load_settings
from pairmq.plugins import Observer, Registry, registry
from pairmq.runner import Agreement, Clock, Engine
from pairmq.transport import Transport, start_task

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal


class Pair:
    """Two brokers that stand in for each other, for all entities of the primary.

    Make one with `Pair.connect` and use it as an async context manager, or await it and `close` it yourself. A pair
    belongs to the event loop that opened it, and refuses calls from another one with `RuntimeError`; one pair serves
    any number of tasks.
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
        self._options = options or PairOptions()
        check_available(self._options, secondary)
        self._syphon_queues = None if syphon_queues is None else frozenset(syphon_queues)
        check_syphon_queues(self._syphon_queues, self._options)
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
        """Make a pair; it opens at ``async with`` or ``await``.

        Args:
            primary: the primary's URL, whose scheme picks the transport, or a transport of your own; else from the
                settings.
            secondary: likewise.
            options: all options at once; or leave it out and name single ones in ``overrides``, which then complete
                those of the settings.
            config: a TOML file with a ``[pair]`` table, under the ``PAIRMQ_*`` variables and what is given here; else
                the one of ``PAIRMQ_CONFIG``, which is left alone where both brokers and ``options`` are given.
            observers: see every event, besides those that installed plugins bring of themselves, and those that the
                settings or ``PAIRMQ_OBSERVERS`` name; each an object, or a name: ``"opentelemetry"``, or a plugin's.
            journal: a directory that takes every event, or a journal that others use too; else the one of the settings
                or of ``PAIRMQ_JOURNAL``, else none. Needs ``pairmq[journal]``.
            plugins: where transports are looked up.
            clock: time and chance, for simulations.
            syphon_queues: indexes of the only backlog queues that this process's syphon empties, where several share
                the work; only these are checked, and made if missing. All when left out.
            overrides: options by name, as in `PairOptions`.

        Raises:
            ConfigurationError: a setting, a URL or a plugin is wrong, or is missing; says what to do.
        """
        urls = [side if isinstance(side, str) else None for side in (primary, secondary)]
        if options is not None and overrides:
            raise ConfigurationError(f"give either options or {', '.join(overrides)}, not both")
        journal = journal or os.environ.get(f"{PREFIX}JOURNAL") or None
        named = named_in_environment()
        if config or options is None or primary is None or secondary is None:
            # A transport of the caller's own needs no URL; any stands in for it.
            settings = load_settings(
                primary="given://" if isinstance(primary, Transport) else urls[0],
                secondary="given://" if isinstance(secondary, Transport) else urls[1],
                config=config,
                overrides=overrides,
            )
            options = options or settings.options
            primary = primary or settings.primary
            secondary = secondary or settings.secondary
            journal = journal or settings.journal
            named = settings.observers
        transports = [side if isinstance(side, Transport) else plugins.transport(side) for side in (primary, secondary)]
        pumped = None if syphon_queues is None else frozenset(syphon_queues)
        check_available(options, transports[1])  # before observers are made, which may open files
        check_syphon_queues(pumped, options)
        watching = observers_of(observers, named, journal, plugins)
        return cls(transports[0], transports[1], options, observers=watching, clock=clock, syphon_queues=pumped)

    # Life.

    async def open(self) -> Self:
        """Make the backlog queues, and start the syphon where it is enabled (SPEC 5.1). Idempotent.

        Neither broker has to be there: a secondary that is away is tried again later, and the first send finds out
        about the primary.

        Raises:
            ConfigurationError: this pair contradicts another one of the process (SPEC 9.3).
            TransportError: the secondary refuses to let the backlog queues be made.
            PairClosed, PairFaulted: it was closed, or has faulted, or its opening was given up: a pair is opened once.

        A cancelled call gives the opening up, unless others wait for it too, and leaves nothing behind.
        """
        if self._ending is not None:
            raise PairClosed("the pair is closed: make a new one")
        if self._opening is None:
            self._opening = start_task(self._open(), name="pair open")
        opening = self._opening
        if not opening.done():
            await self._wait_for(opening)
        if opening.cancelled():
            raise PairClosed("the pair was closed, or its opening was given up, before it was open: make a new one")
        opening.result()
        self._opened.check_here()
        return self

    async def _wait_for(self, opening: asyncio.Task[None]) -> None:
        self._openers += 1
        try:
            await asyncio.wait((opening,))
        except asyncio.CancelledError:
            # Others may wait for it as well; the last one to give up takes it along, also when it has just opened.
            if self._openers == 1:
                opening.cancel()
                await asyncio.wait((opening,))
                if not opening.cancelled() and opening.exception() is None:
                    await self.close()
            raise
        finally:
            self._openers -= 1

    async def _open(self) -> None:
        try:
            _active.claim(self._primary, self._secondary)
            self._claimed = True
            self._engine = await self._started()
        except BaseException:
            await self._audience.end()  # nobody closes a pair that did not open
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
        """End the pair: sends in flight get ``close_grace``, then are unknown; both connections close (SPEC 9.1).

        Idempotent; never raises and never hangs, whatever brokers and observers do. Cancelling it does not stop the
        closing. A pair that was never opened, or was refused, only closes its connections, and none that another pair
        has.
        """
        if self._ending is None:
            self._ending = start_task(self._end(), name="pair end")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._engine is not None:
            await self._engine.close()
        else:
            own = [side for side in (self._primary, self._secondary) if self._claimed or not _active.holds(side)]
            await asyncio.gather(*(side.close() for side in own), return_exceptions=True)
        if self._claimed:
            _active.release(self._primary, self._secondary)
        await self._audience.end()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Messages.

    def sender(self, path: str, *, kind: str = "queue") -> PairSender:
        """Make a sender to an entity; no IO.

        Args:
            path: the queue's or topic's path on the primary.
            kind: ``"queue"`` or ``"topic"``.

        Raises:
            ConfigurationError: the path is none, or the primary's transport has no such entities, or the syphon would
                dead-letter what is diverted: ``allowed_entities`` leaves it out, it is the broker's own, or it has the
                name of a backlog queue (SPEC 5.8).
            PairClosed, PairFaulted: the pair has ended or is not open.
        """
        entity = self._entity(path, kind)
        engine = self._opened
        check_destination(entity, self._options, self._primary)
        try:
            state = engine.sender_state(entity)
        except TransportError as error:
            raise ConfigurationError(f"entity {entity}: {error}") from error
        return PairSender(engine, entity, state, self._options.send_timeout, self._audience.tracing)

    def receiver(
        self, path: str, *, subscription: str | None = None, dead_letter: bool = False, prefetch: int = 1
    ) -> PairReceiver:
        """Make a receiver of the primary; no IO.

        Args:
            path: the queue's or topic's path.
            subscription: the subscription to read, which makes ``path`` a topic.
            dead_letter: read its dead-letter queue.
            prefetch: messages that an iteration locks at once; what it holds must be settled within the lock.

        Raises:
            ConfigurationError: a name is none, or the primary's transport has no such source.
            PairClosed, PairFaulted: the pair has ended or is not open.
        """
        entity = self._entity(path, "queue" if subscription is None else "topic")
        if type(prefetch) is not int or prefetch < 1:
            raise ConfigurationError(f"prefetch is {prefetch!r}: it must be a whole number of at least 1")
        engine = self._opened
        try:
            source = Source(entity, subscription, dead_letter)
            return PairReceiver(engine, engine.primary, source, prefetch, self._clock)
        except (TransportError, ValueError) as error:
            raise ConfigurationError(str(error)) from error

    # What can be seen and said.

    def state(self, path: str, *, kind: str = "queue") -> EntityState:
        """The state of an entity as this process knows it; one that it never used is healthy (SPEC 4)."""
        return self._opened.states().get(self._entity(path, kind), EntityState.HEALTHY)

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of the entities that this process uses, and of those that it used last (SPEC 4.10).

        All that are not healthy are among them; of healthy ones without a sender object, about a thousand.
        """
        return self._opened.states()

    async def check(self, *entities: str | Entity, timeout: float = 5.0) -> Readiness:
        """Ask the brokers whether sends would be accepted now; for readiness checks of services.

        An entity is ready when the primary takes its messages, or when it does not (or is failed over) and a backlog
        queue does. What the primary refuses, such as a missing queue, is never diverted and so not ready (SPEC 3.6).
        Nothing about the entities' states is changed.

        Args:
            entities: paths of queues, or entities; without any, all of `states`. Where there are none, the pair is
                ready when the primary answers or a backlog queue takes messages.
            timeout: seconds that each side has to answer.

        Returns:
            One entry an entity: which side takes its messages, or why none does.

        Raises:
            ConfigurationError: a path is none.
            PairClosed, PairFaulted: the pair has ended or is not open.

        A cancelled check leaves nothing behind.
        """
        engine = self._opened
        engine.check_here()
        asked = [self._entity(one, "queue") if isinstance(one, str) else one for one in entities]
        return await find_readiness(engine, self.name, asked or list(engine.states()), timeout)

    async def agreement(self, *, everywhere: bool = False, timeout: float = 5.0) -> Agreement:
        """Ask the secondary whether the processes of this pair agree, and whether messages wait that none drains.

        A syphon of this process drains from now on what was found of other processes (SPEC 13.2).

        Args:
            everywhere: look also for backlog queues under other names of the primary, which lists all queues of the
                secondary.
            timeout: seconds that each operation may take.

        Returns:
            Options that differ, queues that are not drained, or why that could not be found out.

        Raises:
            PairClosed, PairFaulted: the pair has ended or is not open.

        A cancelled call leaves nothing behind.
        """
        engine = self._opened
        engine.check_here()
        return await engine.agreement(timeout, everywhere=everywhere)

    def events(self) -> AsyncIterator[Event]:
        """Iterate over what happens from this call on, until the pair ends, `aclose` is called or nobody holds it.

        A reader that is slower than the events misses the oldest, and is told so by a `Warned` event. One that is
        cancelled as it waits misses none, and may go on.
        """
        return self._audience.events()

    def subscribe(self, sink: Callable[[Event], None], *, per_message: bool = True) -> Callable[[], None]:
        """Give ``sink`` every event from now on, synchronously; returns what ends that.

        Args:
            sink: must be quick, as sends wait for it; what it raises is reported once and ignored.
            per_message: also the events of single messages, which cost every send and every moved message something.
        """
        self._emit.add(sink, per_message=per_message)
        return lambda: self._emit.remove(sink)

    def mark_healthy(self, path: str, *, kind: str = "queue") -> None:
        """Send to the primary again, on an operator's word (SPEC 4.7); ends a `hold` too."""
        self._opened.operator(self._entity(path, kind), "mark_healthy")

    def force_failover(self, path: str, *, kind: str = "queue") -> None:
        """Divert from now on; pings begin after one ``ping_primary_interval`` and may end it (SPEC 4.7)."""
        self._opened.operator(self._entity(path, kind), "force_failover")

    def hold(self, path: str, *, kind: str = "queue", syphon: bool = False) -> None:
        """Divert until `mark_healthy` or `force_failover`, without pings (SPEC 4.7).

        Args:
            path: the entity's.
            kind: ``queue`` or ``topic``.
            syphon: keep this process's syphon from delivering to the entity too: see `syphon_holds`. Without it a
                syphon goes on moving to the entity what waits in the backlog.

        Raises:
            ConfigurationError: ``syphon`` in a process that has none; then nothing is held. Or the path is invalid.
            PairClosed, PairFaulted: the pair has ended.
        """
        self._opened.operator(self._entity(path, kind), "hold", syphon=syphon)

    @property
    def syphon_holds(self) -> frozenset[Entity]:
        """Entities that this process's syphon delivers nothing to, by `hold` with ``syphon=True``."""
        syphon = self._opened.syphon
        return frozenset() if syphon is None else syphon.gates.held

    @property
    def options(self) -> PairOptions:
        """How it behaves."""
        return self._options

    @property
    def name(self) -> str:
        """``primary>secondary``, as events carry it."""
        return self._emit.pair

    @property
    def primary(self) -> Transport:
        """The primary's transport, whose ``admin`` makes queues."""
        return self._primary

    @property
    def secondary(self) -> Transport:
        """The secondary's transport."""
        return self._secondary

    @property
    def backlog_queues(self) -> tuple[Entity, ...]:
        """The backlog queues on the secondary, in order of their index.

        In a process with a syphon those follow that other processes use beyond this one's options (SPEC 13.2).
        """
        backlog = self._opened.backlog
        return backlog.entities + backlog.others

    @property
    def moved(self) -> int:
        """Messages that this process's syphon has brought home; 0 without one."""
        syphon = self._opened.syphon
        return 0 if syphon is None else syphon.moved

    @property
    def in_flight(self) -> int:
        """Sends in flight now."""
        return self._opened.in_flight

    def __repr__(self) -> str:
        return f"Pair(primary={self._primary.endpoint.url!r}, secondary={self._secondary.endpoint.url!r})"

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ConfigurationError("the pair is not open: use 'async with Pair.connect(...) as pair' or await it")
        return self._engine

    def _entity(self, path: str, kind: str) -> Entity:
        try:
            entity = Entity(path, EntityKind(kind))
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        longest = self._primary.capabilities.max_path_length
        if len(path) > longest:
            raise ConfigurationError(f"entity path of {len(path)} characters: the primary takes at most {longest}")
        return entity
