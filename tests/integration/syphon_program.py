"""A syphon as a process of its own that writes down which messages it may have moved back twice.

It is ``pairmq syphon`` with one observer more: whatever brings a message home must say so here, or a second copy that
it makes looks unexplained.

usage: syphon_program.py DOUBTS OPTIONS OF PAIRMQ SYPHON
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

from pairmq.cli import main
from pairmq.model.events import Event, MessageMoved
from pairmq.plugins import ObserverRecord, hookimpl, registry

DOUBTS = Path(sys.argv.pop(1))


class Doubts:
    """Writes the ids."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, MessageMoved) and (event.maybe_duplicate or event.redelivered or not event.completed):
            with DOUBTS.open("a") as file:
                file.write(f"{event.message_id}\n")

    async def close(self) -> None:
        pass


@hookimpl
def pairmq_observers() -> list[ObserverRecord]:
    return [ObserverRecord(name="doubts", factory=Doubts, automatic=True)]


plugin = types.ModuleType("doubts")
plugin.pairmq_observers = pairmq_observers  # type: ignore[attr-defined]
registry.register(plugin)
DOUBTS.touch()
sys.argv.insert(1, "syphon")
main()
