"""``pairmq journal``: look into a journal, make segments of what killed processes left, and upload segments."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text
from typer import Argument, Option

from pairmq.cli._common import Json, examples, journal_package
from pairmq.cli._output import WARN, Progress, cells, note, put_json, say, stdout_console, stdout_written, table, warn
from pairmq.cli._signals import service_interrupted
from pairmq.cli._values import (
    BadUsage,
    CommandFailed,
    Duration,
    file_problem,
    grouped,
    plural,
    printable,
    without_secrets,
)
from pairmq.model import ConfigurationError
from pairmq.model.records import KINDS, SCHEMA_VERSION

if TYPE_CHECKING:
    from pairmq.observe.journal import Recovered, Shipped

_EPILOG = examples(
    "pairmq journal show journal/ --kind StateChanged --kind PingCompleted",
    "pairmq journal show journal/ --entity orders --json | jq .outcome",
    "pairmq journal stat journal/",
    "pairmq journal recover journal/",
    "pairmq journal ship journal/ s3://bucket/journal --every 1min --delete",
)
_FIRST = ("at", "kind", "entity", "message_id")
_LEFT_OUT = frozenset((*_FIRST, "entity_kind", "pair", "process", "seq", "message_key", "clock"))

group = typer.Typer(no_args_is_help=True, help="Inspect a journal's directory, recover it, ship it.", epilog=_EPILOG)

Directory = Annotated[str, Argument(metavar="DIR", help="The journal's directory.")]


@group.command()
def show(
    directory: Directory,
    kind: Annotated[
        list[str] | None, Option("--kind", metavar="KIND", help="Only events of this kind; repeatable.")
    ] = None,
    entity: Annotated[
        list[str] | None, Option("--entity", "-e", metavar="NAME", help="Only of this entity; repeatable.")
    ] = None,
    json: Json = False,
) -> int:
    """Print the rows of all segments, one per line, ordered by day, process and number.

    Rows still being written are not in a segment yet, and not shown. Exit status: 0, 1 when a segment can't be read.
    """
    unknown = sorted(set(kind or ()) - set(KINDS))
    if unknown:
        raise BadUsage(f"no kind of event is named {', '.join(unknown)}: known are {', '.join(KINDS)}")
    for row in _rows(_existing(directory), kind or (), entity or ()):
        if json:
            put_json(row)
        else:
            with stdout_written():
                sys.stdout.write(f"{_line(row)}\n")
    return 0


@group.command()
def stat(directory: Directory, json: Json = False) -> int:
    """Count segments and rows, and report for each process whether any are missing.

    Exit status: 0, 1 when rows are missing or duplicated, events could not be written, or a segment can't be read.
    """
    folder = _existing(directory)
    with _reading():
        found = journal_package().statistics(folder)
    gaps = any(span.missing or span.dropped for span in found.processes)
    whole = not (found.repeated or found.unwritten or gaps)
    if json:
        put_json({**asdict(found), "schema_version": SCHEMA_VERSION, "whole": whole}, indent=2)
        return 0 if whole else 1
    if not found.rows:
        say(f"{printable(directory)}: no segments yet")
    else:
        kinds, processes = (
            table("kind", ("rows", "right")),
            table("process", ("rows", "right"), ("missing", "right"), ("dropped", "right"), "ended"),
        )
        for name, count in sorted(found.kinds.items(), key=lambda entry: -entry[1]):
            kinds.add_row(*cells((name, grouped(count))))
        for span in found.processes:
            ended = "in good order" if span.ended else "killed, or it still runs"
            counts = (grouped(span.rows), grouped(span.missing), grouped(span.dropped))
            processes.add_row(*cells((span.process, *counts, ended), WARN if span.missing or span.dropped else None))
        size = f"{found.bytes / 1e6:.1f} MB"
        head = f"{plural(found.rows, 'row')} in {plural(found.segments, 'segment')}, {size}"
        head += f", from {_instant(found.first_at)} to {_instant(found.last_at)}"
        stdout_console().print(Group(Text(head), Text(), kinds, Text(), processes))
    first = [span.first_seq for span in found.processes if span.first_seq]
    if first:
        rows = f"{plural(sum(first), 'row')} from the beginning of {plural(len(first), 'process')}"
        note(f"not here: {rows}, deleted, shipped with --delete, or lost")
    if found.open_parts:
        note(
            f"{plural(found.open_parts, 'part')} not yet a segment: of processes that run, or 'pairmq journal recover'"
        )
    if found.unwritten:
        text = f"processes could not write {plural(found.unwritten, 'event')}: 'pairmq journal recover' has the journal"
        warn(f"{text} say when, for those that ended")
    if found.repeated:
        warn(f"{plural(found.repeated, 'row')} are in two segments: a file was copied into the journal")
    return 0 if whole else 1


@group.command()
def recover(
    directory: Directory,
    all_hosts: Annotated[
        bool, Option("--all-hosts", help="Also parts of other machines, whose processes must have ended.")
    ] = False,
    json: Json = False,
) -> int:
    """Make segments from the parts of killed processes; those of running ones are left unchanged.

    Exit status: 0, 1 when something could not be recovered, and was left unchanged.
    """
    folder = _existing(directory)
    with _reading():
        found = journal_package().recover(folder, all_hosts=all_hosts)
    if json:
        put_json(_record(found), indent=2)
    else:
        say(f"recovered {plural(found.rows, 'row')} of {plural(found.parts, 'part')}")
        if found.lost:
            warn(f"{plural(found.lost, 'event')} could not be written by processes that ended; now recorded")
        if found.torn:
            note(f"  cut from their ends, torn when the process died: {plural(found.torn, 'byte')}")
        if found.kept:
            note(f"  left unchanged, in use or of another machine: {plural(found.kept, 'part')}")
        for path, why in found.failed.items():
            warn(f"{path}: {why}")
    return 1 if found.failed else 0


@group.command()
def ship(
    directory: Directory,
    store: Annotated[str, Argument(metavar="URL", help="Its place in a store, e.g. s3://bucket/journal.")],
    delete: Annotated[bool, Option("--delete", help="Delete each segment here once the store has it.")] = False,
    every: Annotated[
        float | None, Duration("--every", "Ship again at this interval, until a signal. Default: once.")
    ] = None,
    json: Json = False,
) -> int:
    """Upload the segments that a store does not have yet, by fsspec; may be interrupted at any time.

    Rows still being written are not in a segment yet, and not uploaded. With --every a store that fails is a warning,
    and is tried again. Exit status: 0, 1 when the store failed or a segment could not be read; with --every 0 after
    SIGTERM.
    """
    folder = _existing(directory)
    if every is None:
        return _ship(folder, store, delete, json, forever=False)
    try:
        while True:
            _ship(folder, store, delete, json, forever=True)
            time.sleep(every)
    except KeyboardInterrupt:
        return service_interrupted()


def _ship(folder: Path, store: str, delete: bool, json: bool, *, forever: bool) -> int:
    journal = journal_package()
    problem = None
    with Progress("checked", "segments") as progress:

        def show_progress(count: int, total: int) -> None:
            progress.update(count, text=f"of {total}")

        try:
            with _reading():
                done = journal.ship(folder, store, delete=delete, progress=show_progress)
        except journal.ShipmentError as error:
            done, problem = error.done, f"{without_secrets(printable(str(error)))}; the next shipment continues"
    if json:
        put_json({**_record(done), "problem": problem})
    else:
        text = f"shipped {plural(len(done.segments), 'segment')}, {done.bytes / 1e6:.1f} MB"
        text += f"; the store had {grouped(done.present)}" if done.present else ""
        say(text + (f"; deleted {grouped(done.deleted)} here" if done.deleted else ""))
        for path, why in done.failed.items():
            warn(f"{printable(str(path))}: {why}")
    if problem is not None:
        if not forever:
            raise CommandFailed(problem)
        warn(problem)
    return 1 if done.failed else 0


def _record(done: Recovered | Shipped) -> dict[str, Any]:
    paths, failed = [str(path) for path in done.segments], {str(path): why for path, why in done.failed.items()}
    return {**asdict(done), "segments": paths, "failed": failed}


def _existing(directory: str) -> Path:
    if "://" in directory:  # it may hold a password
        raise BadUsage("DIR is a URL: give the path of a journal's directory")
    path = Path(directory)
    if not path.is_dir():
        raise BadUsage(f"{printable(directory)}: no such directory")
    return path


@contextmanager
def _reading() -> Iterator[None]:
    """Make errors of files those of the command."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"can't read {file_problem(str(error.filename or 'the journal'), error)}") from error
    except ConfigurationError:  # a ValueError too: what is wrong is not the file
        raise
    except ValueError as error:  # what Arrow's errors are
        raise CommandFailed(f"a file of the journal is not a segment: {error}") from error


def _rows(folder: Path, kinds: Sequence[str], entities: Sequence[str]) -> Iterator[dict[str, Any]]:
    with _reading():
        yield from journal_package().read_rows(folder, kinds=kinds, entities=entities)


def _line(row: dict[str, Any]) -> str:
    parts = [f"{_instant(row['at'])} {row['kind']}"]
    parts += [str(row[name]) for name in _FIRST[2:] if row.get(name)]
    parts += [f"{name}={_value(name, value)}" for name, value in row.items() if name not in _LEFT_OUT]
    return printable(" ".join(parts))


def _value(name: str, value: Any) -> str:
    if isinstance(value, float):
        return _instant(value) if name == "since" or name.endswith("_at") else f"{value:.6g}"
    text = str(value)
    return repr(text) if " " in text or not text else text


def _instant(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # a clock, or a program, that wrote what no calendar has
        return str(seconds)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
