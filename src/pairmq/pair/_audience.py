"""The receivers of a pair's events: observers, the log, and event streams, bounded in memory (SPEC 10.1)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from pairmq.model import ConfigurationError
from pairmq.model.events import Event, PairEnded, Warned
from pairmq.observe import LogObserver
from pairmq.pair._settings import ObserverName, check_directory
from pairmq.pair._tracing import SendTracing
from pairmq.plugins import Observer, Registry, TracingObserver
from pairmq.runner import FAILURES, Clock, Emitter

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

T = TypeVar("T")

OPEN_TELEMETRY = "opentelemetry"
"""The name of the observer that comes with PairMQ, and that needs ``pairmq[otel]``."""


def observers_of(
    given: Iterable[Observer | str],
    named: Sequence[str],
    journal: str | os.PathLike[str] | Journal | None,
    plugins: Registry,
) -> list[Observer]:
    """Put a pair's observers together: those given, some by their names; those named, unless they are there without
    asking; and, with ``plugins``, those that watch every pair. Raises `ConfigurationError`."""
    given = listed(given)
    watching = [observer for observer in given if not isinstance(observer, str)]
    named = (*(name for name in given if isinstance(name, str)), *named)
    records = {record.name: record for record in plugins.observers()}
    watching += [record.factory() for record in records.values() if record.automatic]
    for name in dict.fromkeys(named):
        if name == OPEN_TELEMETRY:
            watching += _open_telemetry(watching)
        elif name not in records:
            known = ", ".join(sorted({OPEN_TELEMETRY, *records}))
            where = f"{name.where}: " if isinstance(name, ObserverName) else ""
            raise ConfigurationError(f"{where}no observer is named {name!r}: known are {known}")
        elif not records[name].automatic:
            watching.append(records[name].factory())
    if journal is not None:
        watching.append(_journal(journal))
    return watching


def listed(observers: Iterable[T]) -> tuple[T, ...]:
    """The observers that a caller gave; a single one, or its name, is an easy mistake."""
    given: object = observers
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"observers is {given!r}: give a list of observers, or of their names")
    return tuple(observers)


def _open_telemetry(watching: Sequence[Observer]) -> list[Observer]:
    try:
        # Not before it is asked for, as it is an extra.
        from pairmq.observe.otel import OpenTelemetryObserver
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    # One that the program made itself has its own providers; a second one would count everything twice.
    return [] if any(isinstance(each, OpenTelemetryObserver) for each in watching) else [OpenTelemetryObserver()]


def _journal(journal: str | os.PathLike[str] | Journal) -> Observer:
    try:
        # Not before it is asked for: it needs pyarrow, which takes longer to import than all of PairMQ.
        from pairmq.observe.journal import Journal, JournalObserver
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    if not isinstance(journal, Journal | os.PathLike):
        check_directory(journal)
    return JournalObserver(journal)


_log = logging.getLogger("pairmq")

_CLOSING = 2.0  # s for an observer to write out what it holds: as long as a transport may take to close
_CAPACITY = 10_000  # events that wait for a stream's reader


class Audience:
    """Forwards a pair's events to its observers, the log and event streams."""

    def __init__(self, name: str, clock: Clock, observers: Iterable[Observer]) -> None:
        self._observers = listed(observers)
        # Weakly: a stream may be dropped anywhere, also before it is first read, and in any thread.
        self._streams: WeakSet[EventStream] = WeakSet()
        self._waited_for: dict[object, EventStream] = {}
        self._ended = False
        self.emit = Emitter(name, clock)
        """Takes the events."""
        for observer in self._observers:
            missing = [name for name in ("on_event", "close") if not callable(getattr(observer, name, None))]
            if missing:
                raise TypeError(
                    f"{observer!r} is not an observer: give an object with on_event(event) and async close(); "
                    f"it lacks {' and '.join(missing)}"
                )
            if inspect.iscoroutinefunction(observer.on_event):
                raise TypeError(
                    f"on_event of {observer!r} is a coroutine function, and would not run: write def on_event"
                )
            follower = observer.on_message_event if isinstance(observer, TracingObserver) else None
            self.emit.add(observer.on_event, follower=follower)
        tracing = [observer for observer in self._observers if isinstance(observer, TracingObserver)]
        self.tracing = SendTracing(tracing, self.emit) if tracing else None
        """Spans of the sends; None without a tracing observer."""
        # The log is always on; its lines for single messages cost the hot path nothing unless they are enabled.
        log = LogObserver()
        self._observers = (*self._observers, log)
        self.emit.add(log.on_event, per_message=_log.isEnabledFor(logging.DEBUG))

    def events(self) -> AsyncIterator[Event]:
        """Iterate over events from this call on, until `end`."""
        stream = EventStream(self._leave, self._waited_for)
        if not self.emit.has(self._hand_on):
            self.emit.add(self._hand_on)
        self._streams.add(stream)
        if self._ended:
            stream.end()
        return stream

    def _hand_on(self, event: Event) -> None:
        for stream in tuple(self._streams):
            stream.put(event)
        self._rest()

    def _leave(self, stream: EventStream) -> None:
        self._streams.discard(stream)
        self._rest()

    def _rest(self) -> None:
        """Stop taking events, which cost every send, when no stream reads them."""
        if not self._streams:
            self.emit.remove(self._hand_on)

    async def end(self) -> None:
        """End the event streams, then close the observers, once; never raises, returns within two seconds."""
        self._ended = True
        for stream in tuple(self._streams):
            stream.end()
        observers, self._observers = self._observers, ()
        await asyncio.gather(*(_close(observer) for observer in observers))


async def _close(observer: Observer) -> None:
    try:
        async with asyncio.timeout(_CLOSING):
            await observer.close()
    except FAILURES:  # only its own timeout cancels it: closing a pair is shielded from its callers
        _log.exception("an observer failed to close: %r", observer)


class EventStream(AsyncIterator[Event]):
    """Yields events as they happen, and ends with the pair.

    A reader that is slower than the events misses the oldest; a `Warned` event in their place says how many. The
    producer holds the stream weakly, so that one that is dropped without being closed is collected; ``waited_for``
    holds it while a reader waits, as the reader's task may have no other reference.
    """

    def __init__(
        self,
        left: Callable[[EventStream], None],
        waited_for: dict[object, EventStream],
        capacity: int = _CAPACITY,
    ) -> None:
        self._left = left
        self._waited_for = waited_for
        self._events: deque[Event] = deque()
        self._capacity = capacity
        self._missed = 0
        self._ended = False
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._events) >= self._capacity:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self._ended = self._ended or isinstance(event, PairEnded)
        self._arrived.set()

    def end(self) -> None:
        """Let the reader end once it has read the queued events."""
        self._ended = True
        with contextlib.suppress(RuntimeError):  # of a reader whose loop was closed
            self._arrived.set()

    async def aclose(self) -> None:
        """Take no more events, drop the queued ones, and end a waiting reader. Idempotent."""
        self._events.clear()
        self.end()
        self._left(self)

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            wait = object()
            self._waited_for[wait] = self
            try:
                await self._arrived.wait()
            finally:
                del self._waited_for[wait]
        if self._missed:
            missed, self._missed = self._missed, 0
            first = self._events[0]
            text = f"{missed} events were missed: read faster, or use an observer"
            return Warned(at=first.at, pair=first.pair, subject="events", text=text)
        return self._events.popleft()
