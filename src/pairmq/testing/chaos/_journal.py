"""The journal of a chaos run's process; every event is written to the process's ledger first.

The ledger is a file without a buffer, so that it has the events that a SIGKILL takes from the journal: comparing the
two shows the lost rows.
"""

from __future__ import annotations

import time
from pathlib import Path

from pairmq.model.events import Event
from pairmq.model.records import row_of
from pairmq.observe.journal import Journal, JournalOptions
from pairmq.testing.chaos._ledger import Ledger

_MAX_AGE = 2.0  # s: a short run has several segments of each process, too
_CLOSING = 30.0  # s


class NotedJournal(Journal):
    def __init__(self, directory: Path, ledger: Ledger) -> None:
        super().__init__(directory, JournalOptions(max_age=_MAX_AGE))
        self._ledger = ledger
        ledger.write("journal", process=self.process)

    def on_event(self, event: Event) -> None:
        self._ledger.write("event", event=row_of(event))
        super().on_event(event)

    def finish(self) -> None:
        """Close it, and write down between which instants that was: its last row is the journal's own."""
        self._ledger.write("journal-closing", wall=time.time())
        ended = self.close(_CLOSING)
        self._ledger.write("journal-closed", wall=time.time(), ended=ended)
