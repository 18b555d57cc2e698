"""Makes the report of a directory of tables: reads, answers, writes the page, and for programs the same in JSON."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pairmq.model import ConfigurationError
from pairmq.pipeline._storage import HadoopPath, Place
from pairmq.pipeline.reporting import _tables
from pairmq.pipeline.reporting._answers import Answers, answers, most_out
from pairmq.pipeline.reporting._messages import closer, grid_of, messages
from pairmq.pipeline.reporting._page import page
from pairmq.pipeline.reporting._values import (
    Findings,
    Key,
    Latency,
    Numbers,
    Operations,
    Outage,
    Reads,
    Sends,
    Series,
    Span,
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
                    {
                        **_named(fault.key),
                        "message_id": _text(fault.message_id),
                        "first_sent_at": iso(fault.first_sent_at),
                        "backlog_queue": _text(fault.backlog_queue),
                        "sent_by": _text(fault.sent_by),
                    }
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
            "seconds": _rounded(sum(span.seconds for span in findings.outages.union)),
            "longest": [_outage(each) for each in findings.outages.worst],
        },
        "entities": [_entity(findings, key) for key in entities[:MOST_ENTITIES]],
        "entities_left_out": max(0, len(entities) - MOST_ENTITIES),
        "consumers": [
            _consumers(findings, key, reads) for key, reads in islice(findings.consumers.items(), MOST_ENTITIES)
        ],
        "latency": {
            phase: {"sends": each.sends, **_times(each)} for phase, each in findings.messages.latencies.items()
        },
        "cost": {
            "source": findings.cost.source,
            "priced": findings.cost.priced,
            "sides": {name: _operations(side) for name, side in findings.cost.sides.items()},
        },
        "unknowns": [
            {"kind": each.kind, "count": each.count, "text": each.text, "names": list(each.names)}
            for each in found.caveats
        ],
        "series": {"overview": _series(findings.messages.overview), "close_up": _series(findings.messages.close_up)},
    }


def _named(key: Key) -> dict[str, str | None]:
    return {"pair": _text(key.pair), "entity": _text(key.entity)}


def _text(text: str | None) -> str | None:
    """A text as it is; one that is longer than any sensible id is cut."""
    return text if text is None or len(text) <= _LONGEST else visible(text, _LONGEST)


def _sends(sends: Sends) -> dict[str, float | None]:
    return {
        "attempted": _rounded(sends.attempted),
        "accepted_primary": _rounded(sends.primary),
        "accepted_backlog": _rounded(sends.backlog),
        "refused": _rounded(sends.refused),
        "unknown": _rounded(sends.unknown),
        "availability": sends.availability,
        "primary_availability": sends.primary_availability,
    }


def _entity(findings: Findings, key: Key) -> dict[str, Any]:
    spans = findings.outages.spans.get(key)
    return {
        **_named(key),
        "seconds_out": _rounded(spans.seconds_out) if spans else 0.0,
        "messages": dict(findings.messages.by_entity.get(key, {})),
        **_sends(findings.availability.entities.get(key, Sends())),
    }


def _consumers(findings: Findings, key: Key, reads: Reads) -> dict[str, Any]:
    handled = zip(("handled", "handled_diverted"), findings.messages.handled.get(key, ()), strict=False)
    return {
        **_named(key),
        "from_primary": reads.from_primary,
        "from_secondary": reads.from_secondary,
        **{name: _rounded(getattr(reads, name)) for name in ("watched", "unread", "longest_unread")},
        "availability": reads.availability,
        **{name: None if each is None else {"messages": each.sends, **_times(each)} for name, each in handled},
    }


def _times(latency: Latency) -> dict[str, float | None]:
    return {name: _rounded(getattr(latency, name)) for name in ("p50", "p95", "p99", "longest")}


def _outage(outage: Outage) -> dict[str, Any]:
    times = ("started_at", "failed_over_at", "up_at", "ended_at")
    durations = ("time_to_divert", "downtime", "time_to_recover", "drain_time")
    texts = ("process", "open_because", "cause", "failure_kind")
    return {
        **_named(outage.key),
        **{name: iso(getattr(outage, name)) for name in times},
        **{name: _rounded(getattr(outage, name)) for name in durations},
        **{name: _text(getattr(outage, name)) for name in texts},
        **{name: getattr(outage, name) for name in ("diverted", "refused", "unknown", "peak_backlog")},
    }


def _operations(side: Operations) -> dict[str, Any]:
    return {
        **{name: getattr(side, name) for name in ("sends", "receives", "pings")},
        "operations": side.total,
        "price": str(side.price),
    }


def _series(series: Series | None) -> Mapping[str, Any] | None:
    if series is None:
        return None
    counts = ("primary", "backlog", "refused", "unknown", "moved", "depth")
    return {
        "from": iso(series.grid.began),
        "slot_seconds": series.grid.width,
        **{name: getattr(series, name).tolist() for name in counts},
        **{name: _numbers(getattr(series, name)) for name in ("p50", "p99", "longest")},
    }


def _numbers(values: Numbers) -> Sequence[float | None]:
    return [_rounded(each) for each in values.tolist()]


def _rounded(value: float | None) -> float | None:
    """To the microsecond; JSON knows nothing that is not a number."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
