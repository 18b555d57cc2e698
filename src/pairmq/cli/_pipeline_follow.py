"""Follows a journal for ``pairmq pipeline run --follow``, and tells after every refresh what the tables say."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from pairmq.cli._output import FAIL, OK, WARN, put_json, say, warn
from pairmq.cli._prices import read_prices
from pairmq.cli._progress import Progress
from pairmq.cli._values import grouped, plural, short_duration
from pairmq.pipeline.follow import Stop, follow

if TYPE_CHECKING:
    from pairmq.pipeline.follow._values import Refreshed
    from pairmq.pipeline.journal_io import BadSegment

_MOST_BAD = 20  # files that are named at once; run.json names all
_STYLES = {"lost": FAIL, "faults": WARN, "good": OK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the command line asks for.

    Args:
        every: seconds from one look for new files to the next.
        once: end when all that is there is in the tables.
        until_idle: end when nothing new has come for so many seconds.
        restart: forget what is kept.
    """

    every: float
    once: bool
    until_idle: float | None
    restart: bool


def run(
    journal: str, out: str, *, patience: float, prices: str | None, cores: int | None, json: bool, wishes: Wishes
) -> int:
    """Keep the tables up to date; the exit status. Raises as `pairmq.pipeline.follow`, and `BadUsage` for prices."""
    charged = None if prices is None else dict(zip(("primary", "secondary"), read_prices(prices), strict=True))
    stop, teller = _Signals(), _Teller(out, json=json)
    with Progress("took", "rows") as progress:
        report = follow(
            journal,
            out,
            cores=cores,
            prices=charged,
            patience=patience,
            every=wishes.every,
            once=wishes.once,
            until_idle=wishes.until_idle,
            restart=wishes.restart,
            stop=stop,
            told=teller.tell,
            progress=lambda rows, text: progress.update(rows, text=text),
        )
    if report.lost:
        return 1
    return 128 + signal.SIGINT if stop.first == signal.SIGINT else 0


class _Teller:
    """Prints a line for every refresh.

    Args:
        out: the directory of the tables.
        json: print documents for programs.
    """

    def __init__(self, out: str, *, json: bool) -> None:
        self._out = out
        self._json = json
        self._bad: set[BadSegment] = set()

    def tell(self, refreshed: Refreshed) -> None:
        """Tell of one."""
        if self._json:
            put_json(refreshed.to_dict())
            return
        report = refreshed.report
        fresh = [bad for bad in report.bad if bad not in self._bad]
        for bad in fresh[:_MOST_BAD]:
            warn(f"{bad.path} is not read: {bad.problem}")
        if len(fresh) > _MOST_BAD:
            warn(f"and {grouped(len(fresh) - _MOST_BAD)} more, which {Path(self._out, 'run.json')} names")
        self._bad = set(report.bad)
        parts = [
            f"{grouped(refreshed.new_rows)} new of {plural(report.rows, 'row')}",
            plural(sum(report.verdicts.values()), "message"),
        ]
        if report.lost:
            parts.append(f"{grouped(report.lost)} lost, see {Path(self._out, 'run.json')}")
        else:
            parts.append({"good": "nothing lost"}.get(report.verdict, f"nothing lost, {report.verdict}"))
        if refreshed.complete_until is not None:
            parts.append(f"complete until {short_duration(max(0.0, time.time() - refreshed.complete_until))} ago")
        parts.append(f"took {short_duration(refreshed.taking + report.seconds)}")
        say("; ".join(parts), style=_STYLES.get(report.verdict))


class _Signals(Stop):
    """Asked by the first SIGINT or SIGTERM; the second one ends the process at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may watch signals; elsewhere (in tests) there are none to watch.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back the handlers that were there."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None:
            os._exit(128 + number)  # Spark's virtual machine ends when its standard input does
        self.first = number
        self.ask()
        with contextlib.suppress(OSError, ValueError):
            os.write(2, b"ending after what is in hand; once more ends at once\n")
