"""Tables of a run written by hand, as Spark would write them: no session is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from journal_by_hand import BACKLOG, PAIR, START
from pairmq.pipeline.transforms import TABLES

EVIDENCE = "evidence"
"""The column of what is asked for seldom, in a table that has such."""

_TYPES = {
    "text": pa.string(),
    "count": pa.int64(),
    "number": pa.float64(),
    "yes or no": pa.bool_(),
    "instant": pa.timestamp("us"),
    "money": pa.decimal128(28, 4),
}


def _schema(table: Any) -> pa.Schema:
    plain = [(each.name, _TYPES[each.type]) for each in table.fields if not each.usual]
    apart = [(each.name, _TYPES[each.type]) for each in table.fields if each.usual]
    return pa.schema([*plain, (EVIDENCE, pa.struct(apart))] if apart else plain)


SCHEMAS = {table.name: _schema(table) for table in TABLES}


def instant(second: float | None) -> datetime | None:
    """An instant as the tables hold it, from seconds after `START`."""
    return None if second is None else datetime.fromtimestamp(START + second, UTC).replace(tzinfo=None)


def message(name: str, verdict: str = "delivered", *, at: float, took: float = 0.01, **values: Any) -> dict[str, Any]:
    """A row of `reconciliation`: accepted by the primary, unless it says otherwise; always with evidence."""
    diverted, moved = values.pop("diverted_at", None), values.pop("moved_at", None)
    known = {
        "pair": PAIR,
        "entity": "orders",
        "message_id": name,
        "verdict": verdict,
        "accepted_primary": int(diverted is None),
        "accepted_backlog": int(diverted is not None),
        "backlog_queue": None if diverted is None else BACKLOG,
        "refused": 0,
        "unknown": 0,
        "called_at": instant(at - took),
        "first_sent_at": instant(at),
        "accepted_at": instant(at),
        "diverted_at": instant(diverted),
        "moved_at": instant(moved),
        "sent_by": "sender",
    }
    return {**known, **values}


def outage(entity: str = "orders", *, at: float, over: float | None, up: float | None, **values: Any) -> dict[str, Any]:
    """A row of `episodes`, from its instants."""
    ended = values.pop("ended", None)
    known = {
        "process": "sender",
        "pair": PAIR,
        "entity": entity,
        "entity_kind": "queue",
        "number": 1,
        "started_at": instant(at),
        "cause": "send failed",
        "failure_kind": "unavailable",
        "failed_over_at": instant(over),
        "up_at": instant(up),
        "ended_at": instant(ended),
        "open_because": None if ended is not None else "journal ends",
        "downtime": None if up is None or over is None else up - over,
        "time_to_recover": None if up is None else up - at,
        "drain_time": None if ended is None or up is None else ended - up,
        "diverted": 0,
        "refused": 0,
        "unknown": 0,
        "peak_backlog": 0,
    }
    return {**known, **values}


def hour(
    entity: str = "orders", *, at: float = 0.0, primary: float, backlog: float = 0.0, **values: Any
) -> dict[str, Any]:
    """A row of `availability`."""
    refused, unknown = values.pop("refused", 0.0), values.pop("unknown", 0.0)
    return {
        "pair": PAIR,
        "entity": entity,
        "hour": instant(at),
        "attempted": primary + backlog + refused + unknown,
        "accepted_primary": primary,
        "accepted_backlog": backlog,
        "refused": refused,
        "unknown": unknown,
        **values,
    }


def reads(
    entity: str = "orders", *, at: float = 0.0, primary: int = 0, secondary: int = 0, **values: Any
) -> dict[str, Any]:
    """A row of `consumers`."""
    known = {"pair": PAIR, "entity": entity, "hour": instant(at), "from_primary": primary, "from_secondary": secondary}
    return {**known, **dict.fromkeys(("watched", "unread", "longest_unread"), 0.0), **values}


def process(name: str = "sender", *, first: float = 0.0, last: float, **values: Any) -> dict[str, Any]:
    """A row of `processes`: one that ended in good order, unless it says otherwise."""
    known = {
        "process": name,
        "host": "here",
        "pid": 7,
        "version": "0.1.0",
        "sample_healthy": 1.0,
        "first_at": instant(first),
        "last_at": instant(last),
        "rows": 10,
        "missing": 0,
        "misdated": 0,
        "dropped": 0,
        "ended": "closed",
    }
    return {**known, **values}


def side(
    name: str, *, sends: int, receives: int = 0, pings: int = 0, price: str = "0", **values: Any
) -> dict[str, Any]:
    """A row of `cost`."""
    return {
        "pair": PAIR,
        "side": name,
        "day": instant(0.0),
        "source": "counted",
        "sends": sends,
        "receives": receives,
        "pings": pings,
        "operations": sends + receives + pings,
        "price": Decimal(price),
        **values,
    }


def write_tables(
    folder: Path,
    *,
    bad: Sequence[Mapping[str, str]] = (),
    unfinished: Sequence[Mapping[str, Any]] = (),
    patience: float = 300.0,
    **rows: Sequence[dict[str, Any]] | pa.Table,
) -> Path:
    """Write a run.

    Args:
        folder: of the tables; made.
        bad: what ``run.json`` says of files that were not read.
        unfinished: what it says of parts that are no segments yet.
        patience: that it says was asked for.
        rows: of each table, or the table; one that is not named is empty.
    """
    for name, schema in SCHEMAS.items():
        given = rows.get(name, ())
        table = given if isinstance(given, pa.Table) else _table(given, schema)
        (folder / name).mkdir(parents=True)
        pq.write_table(table, folder / name / "part-0.parquet")
    verdicts = pq.read_table(folder / "reconciliation", columns=["verdict"])["verdict"].value_counts().to_pylist()
    document = {
        "verdict": "good",
        "versions": {"pairmq": "0.1.0", "spark": "4.3.0", "schema": 1},
        "patience": patience,
        "journal": {"bad_segments": list(bad), "unfinished_parts": list(unfinished)},
        "messages": {each["values"]: each["counts"] for each in verdicts},
    }
    (folder / "run.json").write_text(json.dumps(document))
    return folder


def _table(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    apart = {field.name for field in schema.field(EVIDENCE).type} if EVIDENCE in schema.names else set()
    for row in rows:
        assert set(row) <= {*schema.names, *apart}, set(row) - {*schema.names, *apart}
    nested = ({**row, EVIDENCE: {name: row.get(name) for name in apart}} for row in rows)
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in nested], schema=schema)
