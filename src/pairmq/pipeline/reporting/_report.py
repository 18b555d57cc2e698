"""Makes the report of a directory of tables: reads, answers, writes the page and the document."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pairmq.model import ConfigurationError
from pairmq.pipeline._storage import HadoopPath, Place
from pairmq.pipeline.reporting import _tables
from pairmq.pipeline.reporting._answers import answers
from pairmq.pipeline.reporting._messages import closer, grid_of, messages
from pairmq.pipeline.reporting._page import page
from pairmq.pipeline.reporting._summary import summary
from pairmq.pipeline.reporting._values import Findings, Span

PAGE = "report.html"

_TRIES = 5  # to read tables that a follower replaces every now and then


@dataclass(frozen=True, slots=True)
class Written:
    """A report that was written."""

    page: Place  # the HTML file
    document: Place  # the JSON file
    content: Mapping[str, Any]  # what is in the latter

    @property
    def lost(self) -> int:
        """Messages that were accepted and are lost."""
        return int(self.content["messages"]["by_verdict"].get("lost", 0))


def report(directory: Place, to: Place | None = None) -> Written:
    """Write the report; see `pairmq.pipeline.reporting.report`."""
    place = directory / PAGE if to is None else to
    beside = place.with_suffix(".json")
    if beside == place or place.is_dir():
        raise ConfigurationError(f"can't write the report to {place}: name a file that ends with .html")
    findings = _read_whole(directory)
    found = answers(findings)
    document = summary(findings, found)
    _put(place, page(findings, found, directory))
    _put(beside, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return Written(place, beside, document)


def read(directory: Place) -> Findings:
    """Read the tables."""
    tables = _tables.Directory(directory)
    wrote = _tables.programs(tables)
    first, last = wrote.first_at, wrote.last_at
    out = _tables.outages(tables, wrote)
    overview = None if first is None or last is None else grid_of(Span(first, last))
    drained = [span for each in out.spans.values() for span in each.draining]
    read_by = _tables.consumers(tables)
    close_up = None if overview is None else closer(overview, out.union, drained)
    return Findings(
        run=tables.run,
        programs=wrote,
        outages=out,
        availability=_tables.availability(tables),
        consumers=read_by,
        cost=_tables.cost(tables),
        order=_tables.order(tables),
        messages=messages(tables, out, overview, close_up, read_by),
    )


def _read_whole(directory: Place) -> Findings:
    """Read the tables; once more where one was replaced meanwhile."""
    for _ in range(_TRIES - 1):
        try:
            return read(directory)
        except _tables.TableReplaced:
            continue
    return read(directory)


def _put(place: Place, text: str) -> None:
    """Put a text in its place at one stroke."""
    try:
        if isinstance(place, HadoopPath):
            place.write_text(text)
            return
        new = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
        try:
            new.write_text(text, "utf-8")
            new.replace(place)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"can't write the report to {place}: {error.strerror or error}") from None
