"""The report as a JSON document: the same answers and plots, for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pairmq.pipeline.reporting._answers import Answers, most_out
from pairmq.pipeline.reporting._values import Findings, Key, Latency, Numbers, Operations, Outage, Reads, Sends, Series
from pairmq.pipeline.reporting._words import iso, visible

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
