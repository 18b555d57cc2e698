"""Makes the report of a directory of tables: reads, answers, writes the page, and for programs the same in JSON."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pairmq.model import ConfigurationError
from pairmq.pipeline._storage import HadoopPath, Place
from pairmq.pipeline.reporting import _tables
from pairmq.pipeline.reporting._answers import Answers, answers, most_out
from pairmq.pipeline.reporting._messages import closer, grid_of, messages
from pairmq.pipeline.reporting._page import page
from pairmq.pipeline.reporting._values import (
    Findings,
    Key,
    Outage,
    Reads,
    Sends,
    Series,
    Span,
    Spans,
)
from pairmq.pipeline.reporting._words import iso, visible

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


SCHEMA = 1
"""Incremented when a name is removed or changes its meaning."""

MOST_ENTITIES = 1000
"""Entities that are listed individually, those that were out longest first."""

_LONGEST = 1000  # characters of an id


def summary(findings: Findings, found: Answers) -> dict[str, Any]:
    """Make the document; the reference of the pipeline says what it holds."""
    entities = most_out(findings)
    first, last = findings.programs.first_at, findings.programs.last_at
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "headline": found.headline,
        "sentence": found.sentence,
        "period": {
            "from": iso(first),
            "to": iso(last),
            "seconds": None if first is None or last is None else round(last - first, 3),
        },
        "versions": findings.run.get("versions", {}),
        "messages": {"count": findings.messages.count, "by_verdict": dict(findings.messages.verdicts)},
        "faults": {
            verdict: {
                "count": findings.messages.verdicts[verdict],
                "messages": [
                    _fields(fault.key, "pair", "entity")
                    | _fields(fault, "message_id", "first_sent_at", "backlog_queue", "sent_by")
                    for fault in faults
                ],
            }
            for verdict, faults in findings.messages.faults.items()
        },
        "order": {"delivered": findings.order.delivered, "overtaken_by_design": findings.order.overtaken},
        "availability": _sends(findings.availability.total),
        "outages": {
            "count": findings.outages.count,
            "open": findings.outages.still_open,
            "seconds": round(sum(span.seconds for span in findings.outages.union), 6),
            "longest": [_outage(each) for each in findings.outages.worst],
        },
        "entities": [_entity(findings, key) for key in entities[:MOST_ENTITIES]],
        "entities_left_out": max(0, len(entities) - MOST_ENTITIES),
        "consumers": [
            _consumers(findings, key, reads) for key, reads in islice(findings.consumers.items(), MOST_ENTITIES)
        ],
        "latency": {phase: _fields(each, "sends", *_TIMES) for phase, each in findings.messages.latencies.items()},
        "cost": {
            "source": findings.cost.source,
            "priced": findings.cost.priced,
            "sides": {
                name: {**_fields(side, "sends", "receives", "pings", "operations"), "price": str(side.price)}
                for name, side in findings.cost.sides.items()
            },
        },
        "unknowns": [{**_fields(each, "kind", "count", "text"), "names": list(each.names)} for each in found.caveats],
        "series": {"overview": _series(findings.messages.overview), "close_up": _series(findings.messages.close_up)},
    }


def _fields(of: object, *names: str) -> dict[str, Any]:
    return {name: _plain(name, getattr(of, name)) for name in names}


def _plain(name: str, value: Any) -> Any:
    """A value as JSON has it: instants as texts, seconds to the microsecond, and nothing that is not a number."""
    if name.endswith("_at"):
        return iso(value)
    if isinstance(value, str) and len(value) > _LONGEST:
        return visible(value, _LONGEST)
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, np.ndarray):
        return [_plain(name, each) for each in value.tolist()]
    return value


_TIMES = ("p50", "p95", "p99", "longest")


def _sends(sends: Sends) -> dict[str, Any]:
    counts = _fields(sends, "attempted", "accepted_primary", "accepted_backlog", "refused", "unknown")
    return counts | {"availability": sends.availability, "primary_availability": sends.primary_availability}


def _entity(findings: Findings, key: Key) -> dict[str, Any]:
    return {
        **_fields(key, "pair", "entity"),
        **_fields(findings.outages.spans.get(key, Spans()), "seconds_out"),
        "messages": dict(findings.messages.by_entity.get(key, {})),
        **_sends(findings.availability.entities.get(key, Sends())),
    }


def _consumers(findings: Findings, key: Key, reads: Reads) -> dict[str, Any]:
    handled = zip(("handled", "handled_diverted"), findings.messages.handled.get(key, ()), strict=False)
    return {
        **_fields(key, "pair", "entity"),
        **_fields(reads, "from_primary", "from_secondary", "watched", "unread", "longest_unread"),
        "availability": reads.availability,
        **{name: each and {"messages": each.sends, **_fields(each, *_TIMES)} for name, each in handled},
    }


def _outage(outage: Outage) -> dict[str, Any]:
    return {
        **_fields(outage.key, "pair", "entity"),
        **_fields(outage, "started_at", "failed_over_at", "up_at", "ended_at"),
        **_fields(outage, "time_to_divert", "downtime", "time_to_recover", "drain_time"),
        **_fields(outage, "process", "open_because", "cause", "failure_kind"),
        **_fields(outage, "diverted", "refused", "unknown", "peak_backlog"),
    }


def _series(series: Series | None) -> dict[str, Any] | None:
    if series is None:
        return None
    return {
        "from": iso(series.grid.began),
        "slot_seconds": series.grid.width,
        **_fields(series, "primary", "backlog", "refused", "unknown", "moved", "depth", "p50", "p99", "longest"),
    }
