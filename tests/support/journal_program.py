"""A program that journals numbered events until it is killed: ``journal_program.py DIR [OPTION=NUMBER]...``.

It writes the number of the next event to stdout after each one that the journal has taken, so that its parent knows
what was handed over, and when.
"""

from __future__ import annotations

import itertools
import sys
import time

from journal_events import warned
from pairmq.observe.journal import Journal, JournalOptions


def main() -> None:
    directory, *given = sys.argv[1:]
    options = {name: float(value) for name, _, value in (each.partition("=") for each in given)}
    counts = {name: int(options.pop(name)) for name in ("max_rows", "max_bytes") if name in options}
    journal = Journal(directory, JournalOptions(**options, **counts))
    print(journal.process, flush=True)
    for number in itertools.count():
        journal.on_event(warned(str(number)))
        if number % 20 == 0:
            print(number, flush=True)
            time.sleep(0.001)


if __name__ == "__main__":
    main()
