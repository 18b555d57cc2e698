"""Sends under the eyes of observers that follow messages, and that must not be able to disturb them (SPEC 10.1)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from pairmq.model import Entity, Message, Receipt, SendError
from pairmq.plugins import SendTrace, TracingObserver
from pairmq.runner import FAILURES, Emitter

Results: TypeAlias = list[Receipt | SendError]
Send: TypeAlias = Callable[[Sequence[Message], float], Coroutine[Any, Any, Results]]
"""Sends messages, within so many seconds."""

_Trace: TypeAlias = tuple[TracingObserver, SendTrace]


class SendTracing:
    """Opens every tracing observer's trace around an operation, and ends it with what came of that."""

    def __init__(self, observers: Sequence[TracingObserver], emit: Emitter) -> None:
        self._observers = tuple(observers)
        self._emit = emit

    async def run(self, entity: Entity, send: Send, messages: Sequence[Message], limit: float) -> Results:
        """Send messages, as the observers want them to be sent; returns and raises what ``send`` does."""
        if not all(isinstance(message, Message) for message in messages):
            return await send(messages, limit)  # which says what is wrong with that
        traces, messages = self._begin(entity, messages)
        try:
            results = await send(messages, limit)
        except BaseException as error:
            self._end(traces, error)
            raise
        self._end(traces, results)
        return results

    def _begin(self, entity: Entity, messages: Sequence[Message]) -> tuple[list[_Trace], Sequence[Message]]:
        traces = []
        for observer in self._observers:
            try:
                trace = observer.begin_send(self._emit.pair, entity, messages)
                messages = trace.messages
            except FAILURES:
                self._emit.report(observer)
            else:
                traces.append((observer, trace))
        return traces, messages

    def _end(self, traces: list[_Trace], results: Results | BaseException) -> None:
        # Like brackets: what an observer put into the context of the task is taken out in the reverse order.
        for observer, trace in reversed(traces):
            try:
                trace.end(results)
            except FAILURES:
                self._emit.report(observer)
