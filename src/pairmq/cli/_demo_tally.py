"""What the demo sends, how fast, when it stops the primary, and the account of every message.

The account compares what the sender's receipts say with what a consumer saw.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Self

from pairmq.cli._lines import MAX_LINE
from pairmq.cli._values import BadUsage, file_problem
from pairmq.model import Receipt, Route, SendError, SendUnknown

_SENDING = 10.0  # s that all messages take unless a rate is given
_LONGEST_RESTART = 10.0  # s, most extra time of sending for a primary that restarts slowly


@dataclass(frozen=True, slots=True)
class Plan:
    """The course, in seconds; without a rate 10, and as many more as the primary probably needs to ``restart``."""

    messages: int
    rate: float | None
    failover_interval: float
    restart: float = 0.0

    @property
    def sending(self) -> float:
        if self.rate is None:
            return _SENDING + min(self.restart, _LONGEST_RESTART)
        return self.messages / self.rate

    @property
    def outage_at(self) -> float:
        return 0.25 * self.sending

    @property
    def outage_ends_at(self) -> float:
        """When the primary is brought back, which takes `restart`."""
        return self.outage_at + max(0.35 * self.sending - self.restart, self.failover_interval + 1.5)

    @property
    def drain_rate(self) -> float:
        """Messages a second of the syphon: held down a little, so that the drain can be watched."""
        return max(20.0, 1.2 * self.messages / self.sending)

    def due_at(self, index: int) -> float:
        return (index + 0.5) * self.sending / self.messages


class Texts:
    """The bodies: the lines of a file, read as they are needed, or without a file so many made up."""

    def __init__(self, path: str | None, count: int) -> None:
        self._path = path
        self._count = count
        self._file: BinaryIO | None = None
        if path is None:
            return
        try:
            self._file = open(path, "rb")  # noqa: SIM115  # closed in __exit__
            if not self._file.seekable():
                self._file.close()
                raise BadUsage(f"{path}: the demo reads the file twice: give a regular file")
            self._count = sum(1 for _ in self._lines())
        except OSError as error:
            raise BadUsage(f"can't read {file_problem(path, error)}") from None
        if not self._count:
            raise BadUsage(f"{path}: the file is empty; nothing to send")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        if self._file is None:
            for number in range(1, self._count + 1):
                yield f"message {number} of {self._count}".encode()
        else:
            yield from self._lines()

    def _lines(self) -> Iterator[bytes]:
        file = self._file
        if file is None:
            return
        file.seek(0)
        while line := file.readline(MAX_LINE):
            yield line.removesuffix(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


class Fate(enum.IntEnum):
    """The result that the sender got for a message."""

    UNSENT = 0
    IN_FLIGHT = 1
    PRIMARY = 2
    BACKLOG = 3
    REFUSED = 4
    UNKNOWN = 5


@dataclass(frozen=True, slots=True)
class Totals:
    """The account of all messages at the end.

    ``unverified`` and ``lost`` messages were accepted and are in neither place, the former as far as could be seen: the
    primary can't be read. ``duplicates_explained`` are further copies that a receipt, the syphon or the broker had
    announced as possible; unexplained ones include refused messages that came all the same.
    """

    sent: int
    accepted_primary: int
    accepted_backlog: int
    refused: int
    unknown: int
    delivered: int
    left_in_backlog: int
    unverified: int
    lost: int
    duplicates_explained: int
    duplicates_unexplained: int
    longest_send: float

    @property
    def ok(self) -> bool:
        """Whether every message was accepted and delivered, and nothing came unexplained."""
        return self.sound and not self.left_in_backlog

    @property
    def sound(self) -> bool:
        """Whether every message was accepted, and nothing was lost or came unexplained; some may be on their way."""
        return not (self.lost or self.unverified or self.duplicates_unexplained or self.refused or self.unknown)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "longest_send": round(self.longest_send, 6), "ok": self.ok}


class Tally:
    """The account; two bytes and a bit a message."""

    def __init__(self, run_id: str, total: int) -> None:
        self._prefix = f"demo-{run_id}-"
        self._fates = bytearray(total)
        self._copies = bytearray(total)
        self._maybe = bytearray(total)
        self.counts = [0] * len(Fate)
        self.delivered = 0
        self.from_lanes = 0
        """Of these, the messages that were first seen in a lane."""
        self.longest_send = 0.0

    def message_id(self, index: int) -> str:
        return f"{self._prefix}{index}"

    def index(self, message_id: str | None) -> int | None:
        if message_id is None or not message_id.startswith(self._prefix):
            return None
        digits = message_id[len(self._prefix) :]
        index = int(digits) if digits.isascii() and digits.isdigit() else -1
        return index if 0 <= index < len(self._fates) else None

    @property
    def sent(self) -> int:
        return sum(self.counts[Fate.IN_FLIGHT :])

    @property
    def accepted(self) -> int:
        return self.counts[Fate.PRIMARY] + self.counts[Fate.BACKLOG]

    @property
    def ended(self) -> int:
        return self.sent - self.counts[Fate.IN_FLIGHT]

    def started(self, index: int) -> None:
        self._fates[index] = Fate.IN_FLIGHT
        self.counts[Fate.IN_FLIGHT] += 1

    def ended_as(self, index: int, result: Receipt | SendError) -> None:
        if isinstance(result, Receipt):
            fate = Fate.PRIMARY if result.route is Route.PRIMARY else Fate.BACKLOG
            self.longest_send = max(self.longest_send, result.elapsed)
            self._maybe[index] |= result.maybe_duplicate
        else:
            fate = Fate.UNKNOWN if isinstance(result, SendUnknown) else Fate.REFUSED
        self.counts[self._fates[index]] -= 1
        self._fates[index] = fate
        self.counts[fate] += 1

    def announced(self, message_id: str) -> None:
        """The syphon said that a second copy of a message may come."""
        index = self.index(message_id)
        if index is not None:
            self._maybe[index] = 1

    def arrived(self, index: int, *, again: bool = False, lane: bool = False) -> None:
        """The consumer saw a copy, ``again`` if the broker may have delivered it before, of a ``lane`` or not."""
        self._maybe[index] |= again
        self.from_lanes += lane and not self._copies[index]
        self.delivered += not self._copies[index]
        self._copies[index] = min(255, self._copies[index] + 1)

    @property
    def undelivered(self) -> int:
        seen = sum(1 for fate, copies in zip(self._fates, self._copies, strict=True) if copies and fate in _ACCEPTED)
        return self.accepted - seen

    def missing(self, waiting: frozenset[int]) -> int:
        """Accepted messages that the consumer has not seen, without those that are still in the backlog."""
        seen = enumerate(zip(self._fates, self._copies, strict=True))
        return sum(1 for i, (fate, copies) in seen if fate in _ACCEPTED and not copies and i not in waiting)

    def verdict(self, waiting: frozenset[int] = frozenset(), *, primary_read: bool = True) -> Totals:
        """Settle the account, by the judge of all histories."""
        # The test kit is loaded for this alone.
        from pairmq.testing.history import Result
        from pairmq.testing.judge import Account, Verdict

        results = (None, None, Result.PRIMARY, Result.BACKLOG, Result.REFUSED, Result.UNKNOWN)
        found: Counter[Verdict | None] = Counter()
        waits = (index in waiting for index in range(len(self._fates)))
        # Of many messages few differ.
        alike = Counter(zip(self._fates, self._copies, self._maybe, waits, strict=True))
        for (fate, copies, maybe, waiting_in), times in alike.items():
            account = Account(
                (results[fate],),
                copies,
                "the primary" if copies else "",
                "the backlog" if waiting_in else "",
                announced=bool(maybe) or fate == Fate.UNKNOWN,
            )
            verdicts = {verdict for verdict, _ in account.judged("")}
            found.update(dict.fromkeys(verdicts - {Verdict.DUPLICATE}, times))
            found[Verdict.DUPLICATE if Verdict.DUPLICATE in verdicts else None] += times * max(0, copies - 1)
        lost = found[Verdict.LOST]
        return Totals(
            sent=self.sent,
            accepted_primary=self.counts[Fate.PRIMARY],
            accepted_backlog=self.counts[Fate.BACKLOG],
            refused=self.counts[Fate.REFUSED],
            unknown=self.counts[Fate.UNKNOWN] + self.counts[Fate.IN_FLIGHT],
            delivered=self.delivered,
            left_in_backlog=found[Verdict.NOT_DRAINED],
            unverified=0 if primary_read else lost,
            lost=lost if primary_read else 0,
            duplicates_explained=found[None],
            duplicates_unexplained=found[Verdict.DUPLICATE] + found[Verdict.PHANTOM],
            longest_send=self.longest_send,
        )


_ACCEPTED = (Fate.PRIMARY, Fate.BACKLOG)
