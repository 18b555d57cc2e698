"""Makes journals of any size with plausible outages, and the truth about every message beside them.

The journal is what processes would have written: the same columns, the same folders and names. What happened to each
message was decided first, so that a judge of journals can be judged: ``truth/`` holds a verdict for each message,
``episodes.parquet`` the outages of each process. Rows stream to the disk: a journal of 100 million rows takes no more
memory than one of a million.

Run it with: python benchmarks/journal_generator.py DIR --events 1000000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.model.records import COLUMNS, SCHEMA_VERSION

START = 1_767_225_600.0  # 2026-01-01 UTC
PAIR = "east>west"
FAILOVER = 10.0  # s: the failover interval
QUIET = 400.0  # s around an outage in which no fault is planted, so that each has one cause
DELAY = 300.0  # s by which a reordered message arrives too late
ROWS_A_MESSAGE = 2.2

OUTCOMES = ("accepted-primary", "accepted-backlog", "refused", "unknown")
STATES = ("healthy", "failing", "failed-over")
SENT, DELIVERED, MOVED, FAILED, ASIDE = range(5)
KINDS = ("SendCompleted", "MessageDelivered", "MessageMoved", "AttemptFailed", "MessageDeadLettered")

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
}
SCHEMA = pa.schema([pa.field(column.name, TYPES[column.type], column.nullable) for column in COLUMNS])


@dataclass(frozen=True)
class Plan:
    """What to make.

    Args:
        events: rows, roughly.
        hours: that the journal covers.
        outages: of one entity each, one after another.
        outage_seconds: from the first failure to the recovery.
        senders: processes that send; the first one hosts the syphon.
        entities: queues.
        queues: backlog queues.
        faults: planted messages of each kind: ``lost``, ``lost_in_backlog``, ``duplicated``, ``reordered``,
            ``phantom``, ``expired``.
        gap: whether a minute of the consumer's rows is missing.
        torn: truncated copies of segments.
        copied: whole copies of segments, whose rows are there twice.
        seed: all chance comes from it.
        at_once: messages made at a time.
    """

    events: int = 1_000_000
    hours: float = 24.0
    outages: int = 12
    outage_seconds: float = 600.0
    senders: int = 4
    entities: int = 8
    queues: int = 4
    faults: dict[str, int] = field(default_factory=dict)
    gap: bool = False
    torn: int = 0
    copied: int = 0
    seed: int = 1
    at_once: int = 250_000


FAULTS = ("lost", "lost_in_backlog", "duplicated", "reordered", "phantom", "expired")


@dataclass(frozen=True)
class Outage:
    """One entity's: when sends began to fail, when it was up again, when its backlog was empty."""

    entity: int
    began: float
    up: float
    drained: float


class Events:
    """Rows of single messages, column by column."""

    def __init__(self, size: int, kind: int, **columns: Any) -> None:
        self.columns: dict[str, np.ndarray] = {"kind": np.full(size, kind, np.int8)}
        for name, default in BLANK.items():
            value = columns.get(name, default)
            self.columns[name] = np.broadcast_to(np.asarray(value), size).astype(np.asarray(default).dtype)

    @classmethod
    def joined(cls, parts: list[Events]) -> Events:
        made = cls(0, 0)
        made.columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in made.columns}
        return made

    def take(self, chosen: np.ndarray) -> Events:
        made = Events(0, 0)
        made.columns = {name: values[chosen] for name, values in self.columns.items()}
        return made

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["kind"])


BLANK: dict[str, Any] = {
    "at": 0.0,
    "process": np.int16(0),
    "number": np.int64(-1),
    "entity": np.int16(0),
    "outcome": np.int8(-1),
    "queue": np.int16(-1),
    "elapsed": np.nan,
    "attempts": np.int64(1),
    "doubt": False,
    "state": np.int8(0),
    "sender": np.int16(-1),
    "time_to_live": np.nan,
    "waited": np.nan,
    "position": np.int64(0),
    "reason": np.int8(-1),
}


class Generator:
    """Makes one journal.

    Args:
        plan: what to make.
        out: a directory; the journal is its folder ``journal``.
    """

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan = plan
        self.out = out
        self.journal = out / "journal"
        self.chance = np.random.default_rng(plan.seed)
        self.messages = max(1, int(plan.events / ROWS_A_MESSAGE))
        self.length = plan.hours * 3600
        self.outages = self._outages()
        self.processes = [*(f"sender-{n}" for n in range(plan.senders)), "consumer-0", "consumer-1"]
        self.senders = [f"s{p}-{e}" for p in range(plan.senders) for e in range(plan.entities)]
        self.next_seq = [0] * len(self.processes)
        self.segments: list[Path] = []
        self.rows = 0
        self.diverted: dict[tuple[int, int], int] = {}
        self.planted: dict[str, np.ndarray] = {}

    def run(self) -> dict[str, Any]:
        """Write everything; gives what was made."""
        for folder in (self.journal, self.out / "truth"):
            folder.mkdir(parents=True, exist_ok=True)
        self.gap = self._gap()
        self._plant()
        special = sorted(self._special(), key=lambda row: row["at"])
        left = Events(0, 0)
        size = self.plan.at_once
        for part, first in enumerate(range(0, self.messages, size)):
            numbers = np.arange(first, min(first + size, self.messages))
            made, truth = self._messages(numbers)
            pq.write_table(truth, self.out / "truth" / f"part-{part:06d}.parquet", compression="zstd")
            together = Events.joined([left, made])
            last = first + size >= self.messages
            until = np.inf if last else START + self._time(np.array([first + size]))[0]
            now = together["at"] < until
            due = [row for row in special if row["at"] < until]
            special = special[len(due) :]
            self._flush(together.take(now), due)
            left = together.take(~now)
        self._damage()
        pq.write_table(pa.Table.from_pylist(self._episodes()), self.out / "episodes.parquet")
        made = {"rows": self.rows, "messages": self.messages, "segments": len(self.segments)}
        (self.out / "plan.json").write_text(json.dumps(made))
        return made

    # Decided before anything is written.

    def _outages(self) -> list[Outage]:
        plan = self.plan
        step = self.length / (plan.outages + 1)
        if plan.outages and step < 2 * plan.outage_seconds + 2 * QUIET and plan.outages > 1:
            raise ValueError(f"{plan.outages} outages of {plan.outage_seconds:g} s need more than {plan.hours:g} h")
        made = []
        for number in range(plan.outages):
            began = START + (number + 0.5) * step
            up = began + plan.outage_seconds
            made.append(Outage(number % plan.entities, began, up, up + 2 + 0.2 * plan.outage_seconds))
        return made

    def _time(self, numbers: np.ndarray) -> np.ndarray:
        """Seconds after the start at which messages are sent."""
        return 1.0 + numbers * ((self.length - 10.0) / self.messages)

    def _entity(self, numbers: np.ndarray) -> np.ndarray:
        return (_mixed(numbers + 7) % np.uint64(self.plan.entities)).astype(np.int16)

    def _plant(self) -> None:
        """Choose the messages that faults befall: far from outages, from both ends and from each other."""
        wanted = {name: count for name, count in self.plan.faults.items() if count}
        if set(wanted) - set(FAULTS):
            raise ValueError(f"unknown faults {sorted(set(wanted) - set(FAULTS))}: known are {', '.join(FAULTS)}")
        quiet, backlog = self._candidates()
        for name, count in wanted.items():
            pool = backlog if name in ("lost_in_backlog", "expired") else quiet
            if len(pool) < count:
                raise ValueError(f"no room for {count} messages that are {name}: the journal is too small")
            chosen = self.chance.choice(pool, count, replace=False)
            self.planted[name] = np.sort(chosen)
            quiet, backlog = (np.setdiff1d(each, chosen) for each in (quiet, backlog))

    def _candidates(self) -> tuple[np.ndarray, np.ndarray]:
        some = np.unique(self.chance.integers(0, self.messages, min(self.messages, 200_000)))
        at, entity = START + self._time(some), self._entity(some)
        quiet = (at > START + 0.1 * self.length) & (at < START + 0.8 * self.length)
        quiet &= (at < self.gap[0] - QUIET) | (at > self.gap[1] + QUIET)
        backlog = np.zeros(len(some), bool)
        for outage in self.outages:
            near = (at > outage.began - QUIET) & (at < outage.drained + QUIET)
            quiet &= ~near
            backlog |= (entity == outage.entity) & (at > outage.began + FAILOVER + 1) & (at < outage.up - 1)
        return some[quiet], some[backlog]

    def _is(self, fault: str, numbers: np.ndarray) -> np.ndarray:
        return np.isin(numbers, self.planted.get(fault, np.empty(0, np.int64)))

    def _gap(self) -> tuple[float, float]:
        """A minute in the second half's quiet, of which a consumer's rows are missing."""
        at = START + 0.55 * self.length
        for outage in self.outages:
            if outage.began - QUIET < at < outage.drained + QUIET:
                at = outage.drained + QUIET
        return (at, at + 60.0) if self.plan.gap else (0.0, 0.0)

    # Messages.

    def _messages(self, numbers: np.ndarray) -> tuple[Events, pa.Table]:
        plan, size = self.plan, len(numbers)
        called = START + self._time(numbers)
        entity = self._entity(numbers)
        process = (_mixed(numbers + 11) % np.uint64(plan.senders)).astype(np.int16)
        sender = (process * plan.entities + entity).astype(np.int16)
        queue = (sender % plan.queues).astype(np.int16)
        luck = _mixed(numbers + 13) % np.uint64(100_000)
        elapsed = 0.002 + (_mixed(numbers + 17) % np.uint64(1000)).astype(float) ** 2 / 2e7
        accepted = called + elapsed
        outcome = np.zeros(size, np.int8)
        state = np.zeros(size, np.int8)
        arrived = accepted.copy()
        waited = np.zeros(size, bool)
        for index, outage in enumerate(self.outages):
            hit = (entity == outage.entity) & (called >= outage.began) & (called < outage.up)
            if not hit.any():
                continue
            waits = hit & (called < outage.began + FAILOVER)
            accepted[waits] = outage.began + FAILOVER + 0.01 + (called[waits] - outage.began) * 0.001
            waited |= waits
            outcome[hit], state[hit] = 1, 2
            share = (accepted[hit] - outage.began) / (outage.up + 1 - outage.began)
            arrived[hit] = outage.up + 1 + share * 0.2 * plan.outage_seconds
            for one in range(plan.senders):
                mine = int((hit & (process == one)).sum())
                self.diverted[index, one] = self.diverted.get((index, one), 0) + mine
        healthy = outcome == 0
        refused = (healthy & (luck < 40)) | self._is("phantom", numbers)
        unknown = healthy & ~refused & (luck >= 40) & (luck < 80)
        special = np.zeros(size, bool)
        for name in FAULTS:
            special |= self._is(name, numbers)
        unknown &= ~special
        refused &= ~special | self._is("phantom", numbers)
        outcome[refused], outcome[unknown] = 2, 3
        doubled = healthy & ~refused & ~unknown & ~special & (luck >= 80) & (luck < 120)
        poison = (outcome == 1) & ~special & (luck < 100)
        expired, gone = self._is("expired", numbers), self._is("lost_in_backlog", numbers)
        arrived = np.where(self._is("reordered", numbers), arrived + DELAY, arrived)
        moved = (outcome == 1) & ~poison & ~expired & ~gone
        arrives = (outcome == 0) | moved | self._is("phantom", numbers) | (unknown & (luck % 2 == 0))
        delivered = arrives & ~self._is("lost", numbers)
        read_at = arrived + 0.05
        hidden = (read_at >= self.gap[0]) & (read_at < self.gap[1]) & (entity % 2 == 0)
        shown = delivered & ~hidden
        consumer = (plan.senders + entity % 2).astype(np.int16)
        position = (arrived * 1_000_000).astype(np.int64)

        def rows(which: np.ndarray, kind: int, **columns: Any) -> Events:
            taken = {name: value[which] if isinstance(value, np.ndarray) else value for name, value in columns.items()}
            return Events(int(which.sum()), kind, number=numbers[which], entity=entity[which], **taken)

        parts = [
            rows(
                np.ones(size, bool),
                SENT,
                at=accepted,
                process=process,
                outcome=outcome,
                queue=np.where(outcome == 1, queue, -1),
                elapsed=accepted - called,
                attempts=np.where(waited | doubled, 2, 1),
                doubt=doubled,
                state=state,
                sender=sender,
                time_to_live=np.where(expired, 30.0, np.nan),
            ),
            rows(waited, FAILED, at=called + 0.1, process=process, state=np.int8(1)),
            rows(doubled, FAILED, at=accepted - 0.001, process=process, doubt=True),
            rows(moved, MOVED, at=arrived, process=0, queue=queue, waited=arrived - accepted),
            rows(poison, ASIDE, at=arrived, process=0, queue=queue, reason=np.int8(0)),
            rows(expired, ASIDE, at=arrived, process=0, queue=queue, reason=np.int8(1)),
            rows(shown, DELIVERED, at=read_at, process=consumer, position=position),
        ]
        again = doubled | self._is("duplicated", numbers)
        parts.append(rows(again & ~hidden, DELIVERED, at=read_at + 0.01, process=consumer, position=position + 10_000))
        verdict = np.full(size, "delivered", dtype=object)
        verdict[hidden & (outcome == 0)] = "unproven"
        verdict[refused] = "refused"
        verdict[unknown] = "unknown"
        verdict[unknown & shown] = "unknown, delivered"
        verdict[doubled & ~hidden] = "duplicated, explained"
        verdict[poison] = "dead-lettered"
        for name, means in (
            ("lost", "lost"),
            ("lost_in_backlog", "lost"),
            ("duplicated", "duplicated, unexplained"),
            ("reordered", "out of order"),
            ("phantom", "phantom"),
            ("expired", "expired"),
        ):
            verdict[self._is(name, numbers)] = means
        ids, _ = _ids(numbers)
        truth = pa.table({"message_id": ids, "entity": _names("orders-", entity), "verdict": pa.array(verdict)})
        return Events.joined(parts), truth

    # Rows that are not about one message.

    def _special(self) -> Iterator[dict[str, Any]]:
        plan, end = self.plan, START + self.length + 600
        for number, process in enumerate(self.processes):
            common = {"_process": number}
            opened = {"host": process, "pid": number, "version": "0.1.0", "sample_healthy": 1.0, "pair": ""}
            yield common | opened | {"kind": "JournalOpened", "at": START}
            yield common | {"kind": "JournalClosed", "at": end + 2, "pair": "", "dropped": 0}
            if number >= plan.senders:
                continue
            options = json.dumps({"ordering": "none", "backlog_queue_count": plan.queues})
            yield common | {"kind": "PairOpened", "at": START + 0.1, "version": "0.1.0", "options": options}
            yield common | {"kind": "PairEnded", "at": end + 1, "unknown": 0}
            for minute in range(1, int((self.length + 600) // 60)):
                for side in ("primary", "secondary"):
                    counts = {"sends": 50 + number, "receives": minute % 3, "settlements": 1, "pings": 0, "admin": 2}
                    at = START + 60 * minute
                    yield common | {"kind": "OperationsCounted", "at": at, "side": side, "seconds": 60.0, **counts}
            for outage in self.outages:
                yield from ({**common, **row} for row in self._outage_rows(number, outage))

    def _outage_rows(self, process: int, outage: Outage) -> Iterator[dict[str, Any]]:
        entity = {"entity": f"orders-{outage.entity}", "entity_kind": "queue"}
        began, over = outage.began - 0.5 + 0.01 * process, outage.began + FAILOVER

        def change(at: float, previous: str, current: str, cause: str, lasted: float) -> dict[str, Any]:
            names = {"previous": previous, "current": current, "cause": cause, "lasted": lasted, "epoch": 1}
            return {
                "kind": "StateChanged",
                "at": at,
                **entity,
                **names,
                "sent": 0,
                "diverted": 0,
                "failed": 1,
                "late": 0,
            }

        yield change(began, "healthy", "failing", "send failed", 3600.0)
        yield change(over, "failing", "failed-over", "failover interval over", over - began)
        for at in np.arange(over + 1, outage.up - 1, 60.0):
            error = {"ok": False, "elapsed": 0.5, "error": "connection refused"}
            yield {"kind": "PingCompleted", "at": float(at), **entity, **error}
        yield {"kind": "PingCompleted", "at": outage.up - 0.01, **entity, "ok": True, "elapsed": 0.01}
        if process == 0:  # hosts the syphon
            yield change(outage.up, "failed-over", "draining", "ping recovered", outage.up - over)
            yield change(outage.drained, "draining", "healthy", "backlog drained", outage.drained - outage.up)
        else:
            yield change(outage.up, "failed-over", "healthy", "ping recovered", outage.up - over)
        rotation = {"kind": "RotationChanged", "queue": _queue(process % self.plan.queues)}
        left = self.plan.queues
        yield {**rotation, "at": over + 2, "in_use": False, "left": left - 1, "error": "not reached"}
        yield {**rotation, "at": over + 32, "in_use": True, "left": left}

    def _episodes(self) -> list[dict[str, Any]]:
        return [
            {
                "process": self.processes[process],
                "entity": f"orders-{outage.entity}",
                "started_at": outage.began - 0.5 + 0.01 * process,
                "failed_over_at": outage.began + FAILOVER,
                "up_at": outage.up,
                "ended_at": outage.drained if process == 0 else outage.up,
                "diverted": self.diverted.get((index, process), 0),
            }
            for process in range(self.plan.senders)
            for index, outage in enumerate(self.outages)
        ]

    # Files.

    def _flush(self, events: Events, special: list[dict[str, Any]]) -> None:
        for number in range(len(self.processes)):
            mine = events.take(events["process"] == number)
            others = [row for row in special if row["_process"] == number]
            table = pa.concat_tables([self._table(mine), self._special_table(others)])
            if not table.num_rows:
                continue
            table = table.take(pc.sort_indices(table["at"]))
            hidden = self._hidden(number, table)
            seq = np.arange(self.next_seq[number], self.next_seq[number] + table.num_rows + hidden[1])
            self.next_seq[number] = int(seq[-1]) + 1
            # The numbers of what is missing are missing too.
            seq = np.delete(seq, np.arange(hidden[0], hidden[0] + hidden[1]))
            table = table.set_column(SCHEMA.get_field_index("seq"), SCHEMA.field("seq"), pa.array(seq))
            self._write(number, table)

    def _hidden(self, process: int, table: pa.Table) -> tuple[int, int]:
        """Where in a table rows are missing, and how many."""
        last = self.gap[1]
        at = table["at"].to_numpy()
        if process != self.plan.senders or not last or not len(at) or not at[0] <= last <= at[-1]:
            return 0, 0
        return int(np.searchsorted(at, last)), 10

    def _write(self, process: int, table: pa.Table) -> None:
        days = np.floor(table["at"].to_numpy() / 86_400).astype(int)
        name = self.processes[process]
        for day in np.unique(days):
            rows = table.filter(pa.array(days == day))
            date = datetime.fromtimestamp(int(day) * 86_400, UTC).strftime("%Y-%m-%d")
            path = self.journal / f"date={date}" / f"segment-{name}-{len(self.segments):06d}.parquet"
            path.parent.mkdir(exist_ok=True)
            seq = rows["seq"]
            facts = {
                "schema_version": SCHEMA_VERSION,
                "process": name,
                "first_seq": seq[0].as_py(),
                "last_seq": seq[-1].as_py(),
                "rows": rows.num_rows,
            }
            metadata = {f"pairmq.{key}": str(value) for key, value in facts.items()}
            texts = [c.name for c in COLUMNS if c.type == "string" and c.name not in ("message_id", "options")]
            kept = rows.replace_schema_metadata(metadata)
            pq.write_table(
                kept,
                path,
                compression="zstd",
                use_dictionary=texts,
                row_group_size=max(1, kept.num_rows),
                write_page_checksum=True,
            )
            self.segments.append(path)
            self.rows += rows.num_rows

    def _damage(self) -> None:
        """Add files that a reader must leave out, and files whose rows it has already."""
        for number, path in enumerate(self.segments[: self.plan.torn]):
            data = path.read_bytes()
            path.with_name(f"segment-{self._owner(path)}-9{number:05d}.parquet").write_bytes(data[: len(data) * 2 // 3])
        for number, path in enumerate(self.segments[: self.plan.copied]):
            path.with_name(f"segment-copied-{number:06d}.parquet").write_bytes(path.read_bytes())

    @staticmethod
    def _owner(path: Path) -> str:
        return path.stem.removeprefix("segment-").rpartition("-")[0]

    def _table(self, events: Events) -> pa.Table:
        size = len(events)
        kind = events["kind"]
        sent, delivered, moved = kind == SENT, kind == DELIVERED, kind == MOVED
        failed, aside = kind == FAILED, kind == ASIDE
        ids, keys = _ids(events["number"])
        backlog = events["queue"]
        columns: dict[str, pa.Array] = {
            "kind": _coded(kind, KINDS),
            "at": pa.array(events["at"]),
            "clock": pa.array(np.full(size, START)),
            "pair": pa.repeat(pa.scalar(PAIR), size),
            "entity": _names("orders-", events["entity"]),
            "entity_kind": _only(pa.repeat(pa.scalar("queue"), size), ~aside),
            "process": _coded(events["process"], self.processes),
            "seq": pa.array(np.zeros(size, np.int64)),
            "message_id": ids,
            "message_key": keys,
            "outcome": _coded(np.where(sent, events["outcome"], -1), OUTCOMES),
            "backlog_queue": _coded(np.where(sent, backlog, -1), [_queue(n) for n in range(self.plan.queues)]),
            "attempts": _only(events["attempts"], sent),
            "elapsed": _only(events["elapsed"], sent),
            "maybe_duplicate": _only(events["doubt"], sent | moved),
            "size": _only(np.full(size, 1024), sent),
            "sender": _coded(np.where(sent, events["sender"], -1), self.senders),
            "sequence": _only(events["number"], sent),
            "time_to_live": pa.array(events["time_to_live"], mask=np.isnan(events["time_to_live"])),
            "state": _coded(np.where(sent, events["state"], -1), STATES),
            "error": _coded(np.where(sent & (events["outcome"] == 2), 0, np.where(failed, 1, -1)), ("Refused", "gone")),
            "queue": _coded(np.where(moved | aside, backlog, -1), [_queue(n) for n in range(self.plan.queues)]),
            "waited": _only(events["waited"], moved),
            "redelivered": _only(np.zeros(size, bool), moved),
            "completed": _only(np.ones(size, bool), moved),
            "failure_kind": _coded(np.where(failed, 0, -1), ("unavailable",)),
            "maybe_applied": _only(events["doubt"], failed),
            "late_attempt": _only(np.zeros(size, bool), failed),
            "reason": _coded(np.where(aside, events["reason"], -1), ("not-found", "TTLExpiredException")),
            "description": _coded(np.where(aside, 0, -1), ("it can't be delivered",)),
            "settlement": _coded(np.where(delivered, 0, -1), ("completed",)),
            "dead_letter": _only(np.zeros(size, bool), delivered),
            "delivery_count": _only(np.ones(size, np.int64), delivered),
            "sequence_number": _only(pc.cast(pa.array(events["position"]), pa.string()), delivered),
            "received_at": _only(events["at"], delivered),
        }
        arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(size, f.type) for f in SCHEMA]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    def _special_table(self, rows: list[dict[str, Any]]) -> pa.Table:
        known = [
            {"pair": PAIR, "seq": 0, "clock": START, "process": self.processes[row["_process"]]}
            | {name: value for name, value in row.items() if name != "_process"}
            for row in rows
        ]
        return pa.Table.from_pylist(known, schema=SCHEMA)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Scatter numbers over 64 bits (splitmix64): chance that needs no memory."""
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


_HEX = np.array([f"{byte:02x}" for byte in range(256)], dtype="S2")


def _ids(numbers: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Ids of 32 hexadecimal digits, and their keys: the halves combined by exclusive or."""
    low, high = _mixed(numbers), _mixed(numbers + 1_000_003)
    both = np.stack([high, low], axis=1).astype(">u8")
    text = _HEX[both.view(np.uint8).reshape(-1)].tobytes()
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * 32
    ids = pa.LargeStringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text)).cast(pa.string())
    return ids, pa.array((low ^ high).view(np.int64))


def _queue(number: int) -> str:
    return f"east/x-servicebus-transfer/{number}"


def _names(prefix: str, codes: np.ndarray) -> pa.Array:
    return _coded(codes, [f"{prefix}{number}" for number in range(int(codes.max(initial=0)) + 1)])


def _coded(codes: np.ndarray, names: Any) -> pa.Array:
    """Texts by their number; null for -1."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string())).cast(pa.string())


def _only(values: Any, where: np.ndarray) -> pa.Array:
    """Values, and null elsewhere."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return pc.if_else(pa.array(where), array, pa.scalar(None, array.type))


def generate(out: Path, plan: Plan) -> dict[str, Any]:
    """Make a journal and the truth about it.

    Args:
        out: a directory; made where it is missing.
        plan: what to make.

    Returns:
        Rows, messages and segments.
    """
    return Generator(plan, out).run()


def main() -> int:
    """Make what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--outages", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=0, help="messages of each kind of fault")
    parser.add_argument("--gap", action="store_true")
    parser.add_argument("--torn", type=int, default=0)
    arguments = parser.parse_args()
    plan = Plan(
        events=arguments.events,
        hours=arguments.hours,
        outages=arguments.outages,
        seed=arguments.seed,
        faults=dict.fromkeys(FAULTS, arguments.faults),
        gap=arguments.gap,
        torn=arguments.torn,
    )
    print(json.dumps(generate(arguments.out, plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
