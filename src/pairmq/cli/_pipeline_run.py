"""Runs the pipeline for ``pairmq pipeline run``, and tells what it found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pairmq.cli._errors import printable
from pairmq.cli._output import FAIL, OK, WARN, cells, put_json, say, stdout_console, table, warn
from pairmq.cli._prices import read_prices
from pairmq.cli._progress import Progress
from pairmq.cli._values import grouped, plural, short_duration
from pairmq.pipeline import run as run_pipeline

if TYPE_CHECKING:
    from pairmq.pipeline.report import Report

_MOST_BAD = 20  # files that are named on the screen; run.json names all


def run(journal: str, out: str, *, patience: float, prices: str | None, cores: int | None, json: bool) -> int:
    """Make the tables; the exit status. Raises as `pairmq.pipeline.run`, and `BadUsage` for the price list."""
    charged = None if prices is None else dict(zip(("primary", "secondary"), read_prices(prices), strict=True))
    with Progress("made", "tables") as progress:

        def tell(name: str, number: int, total: int) -> None:
            progress.update(number, text=f"of {total}; now {name}")

        report = run_pipeline(journal, out, cores=cores, prices=charged, patience=patience, progress=tell)
    if json:
        put_json(report.to_dict(), indent=1)
    else:
        _show(report, out)
    return 1 if report.lost else 0


def _show(report: Report, out: str) -> None:
    for bad in report.bad[:_MOST_BAD]:
        warn(f"{bad.path} is not read: {bad.problem}")
    if len(report.bad) > _MOST_BAD:
        warn(f"and {grouped(len(report.bad) - _MOST_BAD)} more, which {Path(out, 'run.json')} names")
    if report.missing or report.dropped:
        warn(
            f"the journal lacks {plural(report.missing, 'row')}, and its processes dropped "
            f"{plural(report.dropped, 'event')}: what may have been there is called unproven, not lost"
        )
    if report.misdated:
        warn(f"{plural(report.misdated, 'row')} count for nothing: by their clock it was before 2020 or after 2100")
    if report.unfinished:
        say(
            f"{plural(len(report.unfinished), 'part')} not finished, whose rows are not read: programs that run finish "
            "theirs, `pairmq journal recover` finishes what killed ones left"
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
    elif report.unfinished or set(report.processes) - {"closed"}:
        say(f"nothing lost in what was read; {where}", style=OK)
    else:
        say(f"nothing lost; {where}", style=OK)
