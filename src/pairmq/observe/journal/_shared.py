"""One journal for each directory of a process, whoever asks for it, and what a pair gives its events to."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from pairmq.model import ConfigurationError
from pairmq.model.events import Event
from pairmq.model.records import Values
from pairmq.observe.journal import _layout, _lives
from pairmq.observe.journal._journal import Journal
from pairmq.observe.journal._options import JournalOptions

_CLOSING = 1.5  # s that a closing pair waits: less than it gives its observers


class _Shared:
    """The journals that were asked for by their directory, and how many asked."""

    def __init__(self) -> None:
        self.forget()
        _lives.in_child(self.forget)

    def forget(self) -> None:
        """In a forked child: whoever uses these is not in it."""
        self._lock = threading.Lock()
        self._journals: dict[Path, tuple[Journal, int]] = {}

    def take(self, path: Path, options: JournalOptions | None) -> Journal:
        with self._lock:
            journal, users = self._journals.get(path, (None, 0))
            if journal is None:
                journal = Journal(path, options)
            elif options is not None and journal.options != options:
                raise ConfigurationError(f"the journal in {path} is in use with other options: {journal.options}")
            self._journals[path] = journal, users + 1
            return journal

    def give_back(self, journal: Journal) -> bool:
        """Tells whether that was the last user."""
        with self._lock:
            known, users = self._journals.get(journal.directory, (None, 0))
            if known is not journal:
                return False
            if users <= 1:
                del self._journals[journal.directory]
            else:
                self._journals[journal.directory] = journal, users - 1
            return users <= 1


_shared = _Shared()


def shared_journal(directory: str | os.PathLike[str], options: JournalOptions | None = None) -> Journal:
    """Give this process's journal in a directory, made at the first call.

    It ends with the process, or with the last pair that names the directory, if no one else has asked for it.

    Args:
        directory: where.
        options: how it behaves, for the first call; later ones get what is there.

    Raises:
        ConfigurationError: as `Journal`, or the one that is there has other options.
    """
    return _shared.take(_layout.directory_of(directory), options)


class JournalObserver:
    """What a pair gives its events to.

    Args:
        journal: stays open when the pair closes; or a directory, whose journal closes with its last pair.

    Raises:
        ConfigurationError: as `Journal`.
    """

    def __init__(self, journal: Journal | str | os.PathLike[str]) -> None:
        self._asked = not isinstance(journal, Journal)
        self.journal = journal if isinstance(journal, Journal) else shared_journal(journal)

    # The journal's own methods: one call less for each event.

    @property
    def on_event(self) -> Callable[[Event], None]:
        """Takes an event."""
        return self.journal.on_event

    @property
    def on_values(self) -> Callable[[Values], None]:
        """Takes an event that was not made yet."""
        return self.journal.on_values

    async def close(self) -> None:
        """Write what is there, for 1.5 s at most; what is not done then goes on beside the program."""
        try:
            await asyncio.to_thread(self._close)
        except RuntimeError:
            # The interpreter is ending and starts no more threads. Nothing else runs then that could be held up.
            self._close()

    def _close(self) -> None:
        asked, self._asked = self._asked, False
        if asked and _shared.give_back(self.journal):
            self.journal.close(_CLOSING)
        else:
            self.journal.flush(_CLOSING)
