"""``pairmq pipeline``: tables of what a journal says, made by Spark once or kept up to date, and their report."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from typer import Option

import pairmq.pipeline.follow
from pairmq.cli import _pipeline_drain
from pairmq.cli._common import Json, examples
from pairmq.cli._output import FAIL, OK, WARN, Progress, cells, put_json, say, stdout_console, table, warn
from pairmq.cli._signals import ENDING, HANGUP, interrupts, service_interrupted
from pairmq.cli._values import BadUsage, Duration, grouped, plural, printable, read_prices, short_duration
from pairmq.model import Price
from pairmq.pipeline.follow import Stop

if TYPE_CHECKING:
    from pairmq.pipeline._storage import Place
    from pairmq.pipeline.follow._values import Refreshed
    from pairmq.pipeline.journal_io import BadSegment
    from pairmq.pipeline.report import Report
    from pairmq.pipeline.reporting import Written

_RUN_EPILOG = examples(
    "pairmq pipeline run --journal /var/lib/pairmq/journal --out tables",
    "pairmq pipeline run --journal journal --out tables --prices prices.toml --json",
    "pairmq pipeline run --journal /var/lib/pairmq/journal --out tables --follow --every 5min",
)

_FOLLOWING = "Following"

Patience = Annotated[
    float,
    Duration("--patience", "How long later messages of its queue may overtake a message before it counts as lost."),
]
Prices = Annotated[
    str | None,
    Option("--prices", metavar="FILE", help="TOML: tables primary and secondary, each per_million and base."),
]


def run(
    journal: Annotated[
        str, Option("--journal", metavar="DIR", help="Directory that the journal was kept in, or a URL for Spark.")
    ],
    out: Annotated[
        str, Option("--out", metavar="DIR", help="Directory of the tables; created if missing. Or a URL for Spark.")
    ],
    patience: Patience = "5min",  # type: ignore[assignment]  # the parser reads defaults too
    prices: Prices = None,
    cores: Annotated[int | None, Option("--cores", metavar="N", min=1, help="Of a local Spark. Default: all.")] = None,
    json: Json = False,
    format: Annotated[
        str | None,
        Option("--format", metavar="NAME", help="Also write the tables as delta, iceberg, …, if Spark has it."),
    ] = None,
    follow: Annotated[
        bool, Option("--follow", help="Keep the tables up to date, until a signal.", rich_help_panel=_FOLLOWING)
    ] = False,
    every: Annotated[
        float | None,
        Duration("--every", "Interval between looks for new files. Default 1min.", rich_help_panel=_FOLLOWING),
    ] = None,
    once: Annotated[
        bool,
        Option(
            "--once",
            help="Continue from the last run, and exit when the tables are up to date.",
            rich_help_panel=_FOLLOWING,
        ),
    ] = False,
    until_idle: Annotated[
        float | None,
        Duration("--until-idle", "Exit when nothing new has arrived for this long.", rich_help_panel=_FOLLOWING),
    ] = None,
    restart: Annotated[
        bool,
        Option("--restart", help="Discard the state, and read the whole journal again.", rich_help_panel=_FOLLOWING),
    ] = False,
) -> int:
    """Build tables from a journal: the fate of each message, outages, availability, the backlog, cost.

    Each table is a directory of Parquet files in the output directory; run.json has a summary. Exit status: 1 when a
    message that was accepted is lost, 130 after Ctrl-C. With --follow a signal ends it after the current batch, a
    second one immediately; the exit status is 0 after SIGTERM. After a kill, the next start continues where it was.
    """
    if not follow and (every is not None or once or until_idle is not None or restart):
        raise BadUsage("--every, --once, --until-idle and --restart are for --follow")
    if follow and format is not None:
        raise BadUsage("--format is for runs without --follow")
    if once and until_idle is not None:
        raise BadUsage("--once and --until-idle exclude each other")
    charged = _by_side(prices)
    if not follow:
        with Progress("made", "tables") as progress:
            report = pairmq.pipeline.run(
                journal,
                out,
                cores=cores,
                prices=charged,
                patience=patience,
                format=format,
                progress=lambda name, number, total: progress.update(number, text=f"of {total}; now {name}"),
            )
        if json:
            put_json(report.to_dict(), indent=1)
        else:
            _show(report, out)
        return 1 if report.lost else 0
    stop, printer = _Signals(), _RefreshPrinter(json=json)
    try:
        with Progress("took", "rows") as progress:
            report = pairmq.pipeline.follow.follow(
                journal,
                out,
                cores=cores,
                prices=charged,
                patience=patience,
                every=60.0 if every is None else every,
                once=once,
                until_idle=until_idle,
                restart=restart,
                stop=stop,
                on_refresh=printer.show,
                progress=lambda rows, text: progress.update(rows, text=text),
            )
    except KeyboardInterrupt:  # before Spark has started
        return service_interrupted()
    if report.lost:
        return 1
    if stop.first is None or stop.first == signal.SIGTERM:
        return 0
    return 128 + stop.first


_MOST_BAD = 20  # files that are named on the screen; run.json names all


def _by_side(path: str | None) -> dict[str, Price] | None:
    return None if path is None else dict(zip(("primary", "secondary"), read_prices(path), strict=True))


def _name_bad(bad: Sequence[BadSegment]) -> None:
    for each in bad[:_MOST_BAD]:
        warn(f"{each.path} is not read: {each.problem}")
    if len(bad) > _MOST_BAD:
        warn(f"and {grouped(len(bad) - _MOST_BAD)} more, which run.json names")


_ONE_SIDED = {
    "not journalled": "without a send in the journal: the sender keeps none, or samples, or its journal is missing",
    "delivery not observed": "accepted for topics, or for queues of which no delivery is in the journal: the consumers "
    "keep none, or their journal is missing",
}
"""By verdict, what one side alone has written: nothing shows whether a whole process is missing."""


def _show(report: Report, out: str) -> None:
    _name_bad(report.bad)
    if report.missing or report.dropped:
        warn(
            f"the journal lacks {plural(report.missing, 'row')}, and its processes dropped "
            f"{plural(report.dropped, 'event')}: messages of these rows are reported as unproven, not lost"
        )
    if report.missing_programs:
        warn(
            f"the latest segments of {plural(len(report.missing_programs), 'run')} of programs are missing, or all, as "
            f"others saw them write, such as {report.missing_programs[0]}: copy them, too; messages of that time are "
            "reported as unproven, not lost"
        )
    if report.misdated:
        warn(f"{plural(report.misdated, 'row')} ignored: their clock was before 2020 or after 2100")
    if report.clocks:
        warn(
            f"the clocks of {plural(len(report.clocks), 'run')} of programs were set by up to "
            f"{short_duration(max(report.clocks.values()))} while they ran: what depends on their instants is reported "
            "as unproven"
        )
    if report.absent:
        warn(
            f"no delivery from {plural(len(report.absent), 'queue')} is in the journal, but deliveries from others of "
            "the pair are: the journal of the consumers is missing, or they keep none; messages there are unproven"
        )
    for verdict, text in _ONE_SIDED.items():
        if count := report.verdicts.get(verdict):
            warn(f"{plural(count, 'message')} {text}")
    if report.unfinished:
        say(
            f"{plural(len(report.unfinished), 'part')} not finished, whose rows are not read: programs that run finish "
            "theirs, `pairmq journal recover` finishes those of killed ones"
        )
    say(
        f"{plural(report.rows, 'row')} of {plural(sum(report.processes.values()), 'run')} of programs, in "
        f"{plural(report.segments, 'segment')}; {short_duration(report.seconds)}"
    )
    shown = table("became of messages", ("how many", "right"))
    for verdict, count in sorted(report.verdicts.items(), key=lambda each: -each[1]):
        shown.add_row(*cells((verdict, grouped(count)), FAIL if verdict in report.faults else None))
    stdout_console().print(shown)
    for verdict, messages in report.faults.items():
        for _, entity, message in messages[:3]:
            say(printable(f"{verdict}: {message} of {entity}"), style=FAIL)
    _conclude(report, out)


def _conclude(report: Report, out: str) -> None:
    where = f"tables in {out}"
    if report.lost:
        say(f"{plural(report.lost, 'message')} lost; {where}", style=FAIL)
    elif report.faults:
        say(f"nothing lost, but see above; {where}", style=WARN)
    elif report.verdict == "incomplete":
        say(f"nothing is known to be lost, but the journal has holes: see above; {where}", style=WARN)
    elif report.unfinished or set(report.processes) - {"closed"} or report.verdicts.keys() & _ONE_SIDED.keys():
        say(f"nothing lost in what was read; {where}", style=OK)
    else:
        say(f"nothing lost; {where}", style=OK)


_FOLLOWING_STYLES = {"lost": FAIL, "faults": WARN, "good": OK}


class _RefreshPrinter:
    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._bad: set[BadSegment] = set()

    def show(self, refreshed: Refreshed) -> None:
        if self._json:
            put_json(refreshed.to_dict())
            return
        report = refreshed.report
        _name_bad([bad for bad in report.bad if bad not in self._bad])
        self._bad = set(report.bad)
        parts = [
            f"{grouped(refreshed.new_rows)} new of {plural(report.rows, 'row')}",
            plural(sum(report.verdicts.values()), "message"),
        ]
        if report.lost:
            parts.append(f"{grouped(report.lost)} lost, see run.json")
        else:
            parts.append({"good": "nothing lost"}.get(report.verdict, f"nothing lost, {report.verdict}"))
        if refreshed.complete_until is not None:
            parts.append(f"complete until {short_duration(max(0.0, time.time() - refreshed.complete_until))} ago")
        parts.append(f"took {short_duration(refreshed.taking + report.seconds)}")
        say("; ".join(parts), style=_FOLLOWING_STYLES.get(report.verdict))


class _Signals(Stop):
    """Asked by the first signal that ends commands; the second one ends the process at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may handle signals; elsewhere (in tests) there are none.
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._on_signal) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            interrupts.hung_up = True
        if self.first is not None:
            if number == HANGUP:
                return
            os._exit(128 + number)  # Spark's virtual machine ends when its standard input does
        self.first = number
        self.ask()
        with contextlib.suppress(OSError, ValueError):
            os.write(2, b"ending after the current batch; once more ends immediately\n")


_REPORT_EPILOG = examples(
    "pairmq pipeline report --out tables",
    "pairmq pipeline report --out tables --to outage.html --open",
    "pairmq pipeline report --out tables --json | jq .outages",
)
STYLES = {"good": OK, "incomplete": WARN, "faults": WARN, "lost": FAIL}
"""How the verdict is printed."""


def report(
    out: Annotated[str, Option("--out", metavar="DIR", help="Directory, or URL, of the tables of an earlier run.")],
    to: Annotated[
        str | None,
        Option("--to", metavar="FILE", help="The page; the JSON is written beside it. Default DIR/report.html."),
    ] = None,
    open: Annotated[bool, Option("--open", help="Show the page in a browser.")] = False,
    json: Json = False,
) -> int:
    """Write a page that answers: was anything lost, what was out for how long, what did it cost, what is unknown.

    The page is one static file without scripts; the same data is written as JSON beside it. Spark is not needed. Exit
    status: 1 when a message that was accepted is lost.
    """
    # Other commands don't need Arrow and Jinja.
    from pairmq.pipeline import reporting

    written = reporting.report(out, to)
    if json:
        put_json(written.content, indent=1)
    else:
        show_headline(written)
    if open:
        show(written.page)
    return 1 if written.lost else 0


def show_headline(written: Written) -> None:
    say(printable(written.content["headline"]), style=STYLES.get(written.content["verdict"]))
    say(f"report: {printable(str(written.page))}")


def show(page: Place) -> None:
    if not webbrowser.open(page.resolve().as_uri() if isinstance(page, Path) else str(page)):
        warn(f"no browser was found: open {page} yourself")


group = typer.Typer(no_args_is_help=True, help="Jobs on Spark: tables from a journal, draining a backlog.")
group.command(epilog=_RUN_EPILOG)(run)
group.command(epilog=_REPORT_EPILOG)(report)
group.command(epilog=_pipeline_drain.EPILOG)(_pipeline_drain.drain)
