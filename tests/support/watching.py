"""An observer of a plugin, which settings can name."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager

from pairmq.model.events import Event
from pairmq.plugins import ObserverRecord, hookimpl, registry


@contextmanager
def watching() -> Iterator[list[str]]:
    """Install an observer under the name ``audit``; gives the kinds of the events that it sees, as they come."""
    seen: list[str] = []

    class Audit:
        def on_event(self, event: Event) -> None:
            seen.append(type(event).__name__)

        async def close(self) -> None:
            pass

    @hookimpl
    def pairmq_observers() -> list[ObserverRecord]:
        return [ObserverRecord(name="audit", factory=Audit)]

    plugin = types.ModuleType("watching_plugin")
    plugin.pairmq_observers = pairmq_observers  # type: ignore[attr-defined]
    registry.register(plugin)
    try:
        yield seen
    finally:
        registry.unregister(plugin)
