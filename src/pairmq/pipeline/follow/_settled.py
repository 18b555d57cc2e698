"""Messages that are settled: judged, and kept aside with their rows of the table until a new row concerns them.

Time alone changes nothing about a message that was accepted and delivered: its verdict follows from its own rows and
from what is listed here. Some time after its delivery it goes into a piece, some files that are never changed. A
refresh judges only the messages that are in none, and those of pieces that something new concerns:

- a row with the key of one of its messages came;
- a message came, or changed, whose place in its queue is before that of one in the piece, and which was sent later;
- a hole of the journal was found, or filled, that may have a row about one of its minutes;
- the patience or the samples of a process changed, and, where it has late messages, also a clock's error, the promised
  order, or what the syphon met with while these were in the backlog.

Such a piece is opened: its messages are judged with the others, and written as a piece again. So the pieces that there
are always agree with what is known, and nothing is assumed of when rows come; only the cost depends on that.

What the tables of other things need of settled messages is kept beside these, and is small: how many arrived by minute
and by sender or session, and of each order of messages the one that was called last, see `frontier`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.pipeline._storage import writing
from pairmq.pipeline.schema import arrow_schema
from pairmq.pipeline.transforms import RECONCILIATION
from pairmq.pipeline.transforms._rows import SLACK
from pairmq.pipeline.transforms.facts import MESSAGES
from pairmq.pipeline.transforms.order import DESIGNED
from pairmq.pipeline.transforms.places import ARRIVALS

AT_MOST = 500_000
"""Messages that are settled by one refresh, so that memory stays bounded; the others have to wait."""

IN_A_PIECE = 100_000
"""Messages in a piece: what a single late row makes a refresh judge again."""

MARGIN = 120.0
"""Seconds, and twice the patience, after its delivery a message is settled: later rows about it are rare."""

_MESSAGES, _ARRIVALS = arrow_schema(MESSAGES.schema), arrow_schema(ARRIVALS)
_JUDGED = arrow_schema(RECONCILIATION.schema)
_AT_ONCE = 1 << 18  # rows
_FIRST = ("observed_from", "delivered_at", "known_from")
_PLANNED = [
    *("place", "message_key", "placed", "position", "deliveries"),
    *("accepted_at", "called_at", "delivered_at", "last_delivered_at"),
]

Queue = tuple[int, bool]
"""A place, and whether positions in it are the broker's own: only then, or only else, they compare."""

Stood = Mapping[Queue, tuple[np.ndarray, np.ndarray]]
"""Positions, and when each message was called."""


class Piece:
    """Some settled messages, kept in a folder.

    Raises `ValueError` with its path where it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "piece.json"
        try:
            document = json.loads(path.read_text("utf-8"))
            self.rows: int = document["rows"]
            self.verdicts: dict[str, int] = document["verdicts"]
            """How many of its messages have each."""
            self.late: dict[str, int] = document["late"]
            """How many of its messages were late, by the table's ``late``."""
            self.began, self.ended = document["began"], document["ended"]
            """The first receipt of any, and the last arrival."""
            self.spans: dict[Queue, tuple[int, int, float]] = {
                (place, placed): (first, last, accepted) for place, placed, first, last, accepted in document["spans"]
            }
            """The first and the last position in each queue, and the first receipt."""
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: this is not a piece of settled messages") from None

    @property
    def messages(self) -> Path:
        """Their facts."""
        return self.folder / "messages.parquet"

    @property
    def judged(self) -> Path:
        """Their rows of the table ``reconciliation``."""
        return self.folder / "reconciliation.parquet"

    @cached_property
    def keys(self) -> np.ndarray:
        """Their keys, sorted; on the disk."""
        return np.load(self.folder / "keys.npy", mmap_mode="r")  # type: ignore[no-any-return]

    @cached_property
    def arrivals(self) -> pa.Table:
        """See `rolled`."""
        return pq.read_table(self.folder / "arrivals.parquet", partitioning=None)

    @cached_property
    def frontier(self) -> pa.Table:
        """See `frontier`."""
        return pq.read_table(self.folder / "frontier.parquet", partitioning=None)

    @cached_property
    def minutes(self) -> frozenset[tuple[int, int]]:
        """The places and minutes in which they arrived."""
        return frozenset(zip(*(self.arrivals[name].to_pylist() for name in ("place", "minute")), strict=True))

    def has(self, keys: np.ndarray) -> bool:
        """Whether any of some keys, which are sorted, is one of its messages'."""
        at = np.minimum(np.searchsorted(self.keys, keys), self.rows - 1)
        return bool((self.keys[at] == keys).any())

    def is_among(self, stood: Stood, changed: Stood) -> bool:
        """Whether its messages decide which of all that stood in its queues were overtaken.

        What is new there or was changed is given as it is and as it was.
        """
        for queue, (first, last, accepted) in self.spans.items():
            if queue in stood and ((stood[queue][0] >= first) & (stood[queue][0] <= last)).any():
                return True
            if queue in changed and ((changed[queue][0] <= last) & (changed[queue][1] > accepted)).any():
                return True
        return False


@dataclass(frozen=True, slots=True)
class Context:
    """What settled messages were judged by, beside the journal's rows about them."""

    patience: float
    least_kept: float | None
    strict: frozenset[int]  # places where order is promised
    clocks: frozenset[tuple[str, float]]  # errors of clocks, of places and processes, but for those without any
    untold: frozenset[tuple[int, int]]  # places and minutes of which a row may be in a hole

    @classmethod
    def of(cls, places: pa.Table, processes: pa.Table, blind: pa.Table, patience: float) -> Context:
        where = places["place"].to_pylist()
        errors = [*zip(map(str, where), places["clock_error"].to_pylist(), strict=True)]
        errors += zip(processes["process"].to_pylist(), processes["clock_error"].to_pylist(), strict=True)
        blind = blind.filter(blind["untold"])
        return cls(
            patience,
            pc.min(places["least_kept"]).as_py(),
            frozenset(place for place, strict in zip(where, places["strict"].to_pylist(), strict=True) if strict),
            frozenset(each for each in errors if each[1]),
            frozenset(zip(blind["place"].to_pylist(), blind["minute"].to_pylist(), strict=True)),
        )

    def concerns(self, piece: Piece, before: Context) -> bool:
        """Whether a piece that was judged by another one has to be judged again."""
        return (
            (self.patience, self.least_kept) != (before.patience, before.least_kept)
            or (bool(piece.late) and self.strict != before.strict)
            or (bool(piece.late.keys() - {DESIGNED}) and self.clocks != before.clocks)
            or not piece.minutes.isdisjoint(self.untold ^ before.untold)
        )

    def to_json(self) -> str:
        return json.dumps(
            [self.patience, self.least_kept, sorted(self.strict), sorted(self.clocks), sorted(self.untold)]
        )

    @classmethod
    def kept(cls, path: Path) -> Context | None:
        """What a file says; None if it does not exist. Raises `ValueError` with its path where it is damaged."""
        if not path.exists():
            return None
        try:
            patience, least_kept, strict, clocks, untold = json.loads(path.read_text("utf-8"))
            return cls(
                patience, least_kept, frozenset(strict), frozenset(map(tuple, clocks)), frozenset(map(tuple, untold))
            )
        except (ValueError, TypeError):
            raise ValueError(f"{path}: this is not what messages were judged by") from None


def planned(paths: Iterable[Path]) -> pa.Table:
    """The columns of messages by which they are settled."""
    parts = [pq.read_table(path, columns=_PLANNED, partitioning=None) for path in paths]
    return pa.concat_tables(parts) if parts else pa.schema([_MESSAGES.field(name) for name in _PLANNED]).empty_table()


def with_keys(messages: pa.Table, keys: np.ndarray) -> pa.Table:
    """Those of some messages that have one of some keys."""
    return messages.filter(pa.array(np.isin(messages["message_key"].to_numpy(), keys)))


def stood_in(messages: pa.Table) -> dict[Queue, tuple[np.ndarray, np.ndarray]]:
    """Group messages that have a place in a queue."""
    placed = messages.filter(pc.and_(pc.is_valid(messages["position"]), pc.is_valid(messages["accepted_at"])))
    numbers, queues = _queues(placed)
    positions, called = placed["position"].to_numpy(), placed["called_at"].to_numpy()
    return {queue: (positions[numbers == at], called[numbers == at]) for at, queue in enumerate(queues)}


def _queues(messages: pa.Table) -> tuple[np.ndarray, list[Queue]]:
    """The number of each message's queue, and the queues."""
    places, number = np.unique(messages["place"].to_numpy(), return_inverse=True)
    number = number * 2 + (messages["placed"].to_numpy() > 0)
    there, number = np.unique(number, return_inverse=True)
    return number, [(int(places[each // 2]), bool(each % 2)) for each in there]


def destinations(messages: pa.Table, opened: Sequence[Piece], patience: float) -> np.ndarray:
    """Decide which messages are settled now: the number of its piece for each of those that are judged, -1 for others.

    First come the pieces that were opened, whose messages get back to where they were, then new ones.
    """
    keys, delivered = messages["message_key"].to_numpy(), messages["delivered_at"].to_numpy()
    done = messages["accepted_at"].is_valid().to_numpy() & (messages["deliveries"].to_numpy() > 0)
    found = np.full(len(keys), -1)
    for number, piece in enumerate(opened):
        found[done & (found < 0) & np.isin(keys, piece.keys)] = number
    last = pc.max(messages["last_delivered_at"]).as_py()
    free = done & (found < 0)
    if last is None or not free.any():
        return found
    horizon = last - 2 * patience - MARGIN
    ready = free & (delivered < horizon)
    if ready.sum() > AT_MOST:
        ready = free & (delivered < np.partition(delivered[ready], AT_MOST)[AT_MOST])
    # Of a queue those are settled that are before all others: these would be among the settled ones, and open them.
    queue, queues = _queues(messages)
    placed = messages["position"].is_valid().to_numpy()
    position = messages["position"].fill_null(0).to_numpy()
    least = np.full(len(queues), np.iinfo(np.int64).max)
    staying = free & ~ready & placed
    np.minimum.at(least, queue[staying], position[staying])
    ready &= ~placed | (position < least[queue])
    at = np.flatnonzero(ready)
    found[at[np.argsort(delivered[at])]] = len(opened) + np.arange(len(at)) // IN_A_PIECE
    return found


def divided(paths: Iterable[Path], found: np.ndarray, rest: Path) -> list[pa.Table]:
    """Take the messages that are settled now, by piece, out of the others, which are written apart."""
    begin = 0
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(int(found.max(initial=-1)) + 1)]
    with writing(rest), pq.ParquetWriter(rest, _MESSAGES) as writer:
        for batch in _batches(paths, _MESSAGES):
            which, begin = found[begin : begin + batch.num_rows], begin + batch.num_rows
            writer.write_batch(batch.filter(pa.array(which < 0)))
            for number in np.unique(which[which >= 0]):
                parts[number].append(batch.filter(pa.array(which == number)))
    return [pa.Table.from_batches(each, _MESSAGES) for each in parts]


def judged_apart(
    paths: Sequence[Path], places: pa.Table, pieces: Sequence[pa.Table], rest: Path
) -> list[tuple[pa.Table, pa.Table]]:
    """Take the rows of settled messages out of the table's files, the rest of which is written apart.

    Gives the rows of each piece, and its messages with one more column, the backlog queue that took each.
    """
    wanted = [_identity(piece["place"], piece["message_id"]) for piece in pieces]
    everything = pa.chunked_array([chunk for each in wanted for chunk in each.chunks], pa.string())
    number = np.repeat(np.arange(len(pieces)), [len(each) for each in wanted])
    names = _joined(places["pair"], places["entity"])
    rows: list[list[pa.RecordBatch]] = [[] for _ in pieces]
    routes = [np.full(len(piece), None, object) for piece in pieces]
    starts = np.cumsum([0, *map(len, wanted)])
    with writing(rest), pq.ParquetWriter(rest, _JUDGED, compression="zstd") as writer:
        for batch in _batches(paths, _JUDGED):
            where = pc.index_in(_joined(batch["pair"], batch["entity"]), value_set=names)
            place = places["place"].combine_chunks().take(where)
            at = pc.index_in(_identity(place, batch["message_id"]), value_set=everything)
            at = at.fill_null(-1).to_numpy(zero_copy_only=False)
            of = np.where(at < 0, -1, number[at] if len(number) else -1)
            writer.write_batch(batch.filter(pa.array(of < 0)))
            for piece in np.unique(of[of >= 0]):
                own = batch.filter(pa.array(of == piece))
                rows[piece].append(own)
                queues = pc.struct_field(own["evidence"], "backlog_queue").to_numpy(zero_copy_only=False)
                routes[piece][at[of == piece] - starts[piece]] = queues
    return [
        (pa.Table.from_batches(own, _JUDGED), piece.append_column("route", pa.array(route, pa.string())))
        for own, piece, route in zip(rows, pieces, routes, strict=True)
    ]


def _identity(place: pa.Array, message_id: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pc.cast(place, pa.string()), message_id, " ")


def _joined(pair: pa.Array, entity: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pair, entity, "\0", null_handling="replace", null_replacement="\1")


def _batches(paths: Iterable[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_AT_ONCE):
                yield batch.cast(schema)


def frontier(messages: pa.Table) -> pa.Table:
    """Of each order of messages the one that was called last: all that the order of other messages needs of them.

    Those who ask are behind all of them, or before all of them. What was diverted counts apart, by its backlog queue.
    """
    placed = messages.filter(
        pc.is_valid(pc.field("position"))
        & ((pc.field("placed") > 0) | (pc.field("got_first_by") == pc.field("got_first_by_other")))
        & ~pc.is_valid(pc.field("due_at"))
    ).sort_by([("called_at", "ascending")])
    placed = pa.concat_tables(
        [placed.filter(pc.is_null(placed["called_at"])), placed.filter(pc.is_valid(placed["called_at"]))]
    )
    direct = pc.greater(placed["accepted_primary"], 0)
    orders = pa.table(
        {
            "place": placed["place"],
            "owner": pc.coalesce(placed["session"], placed["sender"]),
            "reader": pc.if_else(pc.greater(placed["placed"], 0), 0, placed["got_first_by"]),
            "direct": direct,
            "route": pc.if_else(direct, None, placed["route"]),
            "at": np.arange(len(placed)),
        }
    )
    last = orders.group_by(["place", "owner", "reader", "direct", "route"], use_threads=False).aggregate(
        [("at", "max")]
    )
    return placed.take(last["at_max"])


def rolled(arrivals: pa.Table) -> pa.Table:
    """Of what the step ``arrivals`` gives, no more than its readers need of it.

    By minute, of all senders and sessions together, and how many of each were delivered, of all minutes together. What
    it gave can be given to it again, with more.
    """
    how = {name: "min" if name in _FIRST else "max" for name in _ARRIVALS.names[6:]}
    by_minute = _grouped(arrivals, ["place", "minute"], {"messages": "sum", **how})
    by_owner = _grouped(arrivals, ["place", "session", "sender"], {"delivered": "sum"})
    return pa.concat_tables([by_minute, by_owner])


def _grouped(arrivals: pa.Table, keys: list[str], measures: Mapping[str, str]) -> pa.Table:
    found = arrivals.group_by(keys).aggregate([*measures.items()])
    found = found.rename_columns({f"{name}_{how}": name for name, how in measures.items()})
    zeros = {name: pa.array(np.zeros(len(found), np.int64)) for name in ("messages", "delivered")}
    columns = [
        found[each.name] if each.name in found.column_names else zeros.get(each.name, pa.nulls(len(found), each.type))
        for each in _ARRIVALS
    ]
    return pa.table(columns, _ARRIVALS)


def write_messages(folder: Path, messages: pa.Table) -> Path:
    """Begin a piece; gives the file of its messages."""
    path = folder / "messages.parquet"
    with writing(path):
        pq.write_table(messages.select(_MESSAGES.names), path)
    return path


def write_piece(folder: Path, messages: pa.Table, judged: pa.Table, arrivals: pa.Table, last: pa.Table) -> Piece:
    """Write the rest of a piece, where `write_messages` has been."""
    stood = messages.filter(pc.is_valid(messages["position"]))
    number, queues = _queues(stood)
    positions, accepted = stood["position"].to_numpy(), stood["accepted_at"].to_numpy()
    spans = []
    for at, (place, placed) in enumerate(queues):
        own = positions[number == at]
        spans.append([place, placed, int(own.min()), int(own.max()), float(accepted[number == at].min())])
    document = {
        "rows": len(messages),
        "verdicts": Counter(judged["verdict"].to_pylist()),
        "late": Counter(judged["late"].drop_null().to_pylist()),
        "began": pc.min(messages["accepted_at"]).as_py(),
        "ended": pc.max(messages["arrived_at"]).as_py(),
        "spans": spans,
    }
    with writing(folder):
        pq.write_table(judged, folder / "reconciliation.parquet", compression="zstd", row_group_size=1 << 15)
        pq.write_table(arrivals, folder / "arrivals.parquet")
        pq.write_table(last, folder / "frontier.parquet")
        np.save(folder / "keys.npy", np.sort(messages["message_key"].to_numpy()))
        (folder / "piece.json").write_text(json.dumps(document), "utf-8")
    return Piece(folder)


def merged(pieces: Sequence[Piece], folder: Path) -> Piece:
    """Write several pieces as one."""
    messages = pa.concat_tables(pq.read_table(piece.messages, partitioning=None) for piece in pieces)
    judged = pa.concat_tables(pq.read_table(piece.judged, partitioning=None) for piece in pieces)
    write_messages(folder, messages)
    arrivals = rolled(pa.concat_tables(piece.arrivals for piece in pieces))
    return write_piece(
        folder, messages, judged, arrivals, frontier(pa.concat_tables(piece.frontier for piece in pieces))
    )


def struck(piece: Piece, instants: Collection[float]) -> bool:
    """Whether something that stops a pump may have happened while late messages of a piece were in the backlog."""
    if not piece.late or piece.ended is None:
        return False
    return any(piece.began - SLACK <= at <= piece.ended + SLACK for at in instants)


def columns_of(table: Path, *columns: str) -> pa.Table:
    """Some columns of a table that was written."""
    return pq.read_table(table, columns=list(columns), partitioning=None)
