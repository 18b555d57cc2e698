"""What the page shows, as values for JSON: `Dashboard.status` and ``GET api/status``."""

from __future__ import annotations

import heapq
import os
import platform
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

from pairmq._version import version
from pairmq.dashboard._history import History, Past
from pairmq.dashboard._looks import Answer, Looks, Watched, shown
from pairmq.model import Entity, EntityState
from pairmq.model.events import Side
from pairmq.transport import Depth, QueueCounts

MOST_ROWS = 1000
"""Entities that one answer holds."""

_ROWS = 200
_QUEUES = 100
_LINES = 100

# The most urgent first.
_RANKS = {EntityState.FAILED_OVER: 0, EntityState.FAILING: 1, EntityState.DRAINING: 3, EntityState.HEALTHY: 4, None: 5}
_SHUT = 2
_PATH = attrgetter("path", "kind")


@dataclass(frozen=True, slots=True)
class Query:
    """Which entities are asked for: those whose names hold ``search``, in any case, and so many at most."""

    search: str = ""
    state: EntityState | None = None
    limit: int = _ROWS


class View:
    def __init__(self, watched: Watched, history: History, looks: Looks) -> None:
        self._watched = watched
        self._history = history
        self._looks = looks
        self._since = time.time()

    def status(self, query: Query) -> dict[str, Any]:
        """Everything that the page shows, for JSON; instants are wall-clock seconds since 1970 UTC."""
        return {
            "at": time.time(),
            "since": self._since,
            "pair": shown(self._watched.name),
            "process": {"host": platform.node(), "pid": os.getpid(), "version": version()},
            "sends": self._watched.pair is not None,
            "syphon": self._watched.hosts_syphon,
            "ended": self._ended(),
            "brokers": {side.value: self._broker(side) for side in Side},
            "backlog": self._backlog(),
            "drain": self._drain(),
            "outbox": self._outbox(),
            "agreement": self._agreement(),
            "entities": self._entities(query),
            "events": [
                {
                    "at": line.at,
                    "last_at": line.last_at,
                    "count": line.count,
                    "tone": line.sentence.tone.value,
                    "subject": line.sentence.subject,
                    "text": line.sentence.text,
                }
                for line in islice(self._history.lines(), _LINES)
            ],
        }

    def _ended(self) -> dict[str, Any] | None:
        ended = self._history.ended
        if ended is None:
            return None
        return {"at": ended.at, "fault": None if ended.fault is None else shown(ended.fault)}

    def _broker(self, side: Side) -> dict[str, Any]:
        transport = self._watched.primary if side is Side.PRIMARY else self._watched.secondary
        answer = self._looks.brokers.get(side)
        return {"url": shown(transport.endpoint.url), "answer": None if answer is None else _answer(answer)}

    # The backlog.

    def _backlog(self) -> dict[str, Any]:
        looks, out = self._looks, self._history.out
        depths = looks.depths or ()
        error = next((shown(depth.error) for depth in depths if depth.error is not None), None)
        known = looks.depths is not None and error is None
        in_use = None if self._watched.pair is None else self._watched.options.backlog_queue_count - len(out)

        def fullest(each: tuple[int, Depth]) -> tuple[bool, int, int]:
            index, depth = each
            return depth.queue.path not in out, -(depth.pending or 0), index

        first = heapq.nsmallest(_QUEUES, enumerate(depths), fullest)
        return {
            "counted_at": looks.counted_at,
            "pending": sum(depth.pending or 0 for depth in depths) if known else None,
            "dead_letter": sum(depth.dead_letter or 0 for depth in depths) if known else None,
            "oldest": min((looks.oldest[each.queue] for each in depths if each.queue in looks.oldest), default=None),
            "error": error,
            "queues": len(depths) or self._watched.options.backlog_queue_count,
            "in_use": in_use,
            "takes": self._takes(in_use),
            "rows": [self._queue(depth) for _, depth in sorted(first, key=lambda each: each[0])],
            "depth": [[round(at, 1), pending] for at, pending, _ in looks.drain.samples],
        }

    def _takes(self, in_use: int | None) -> bool | None:
        """Whether diverted sends are taken now: a queue in use is worth nothing where its broker does not answer."""
        answer = self._looks.brokers.get(Side.SECONDARY)
        if in_use == 0 or (answer is not None and answer.error is not None):
            return False
        return None if answer is None else True

    def _agreement(self) -> dict[str, Any] | None:
        agreement = self._looks.agreement
        if agreement is None:
            return None
        conflict = () if agreement.conflict is None else (agreement.conflict,)
        return {
            "stranded": [shown(text) for text in (*conflict, *map(str, agreement.stranded))],
            "differences": [shown(text) for text in agreement.differences],
            "unread": None if agreement.unread is None else shown(agreement.unread),
        }

    def _queue(self, depth: Depth) -> dict[str, Any]:
        counts, gone = depth.counts, self._history.out.get(depth.queue.path)
        return {
            "name": depth.queue.path,
            "missing": depth.missing,
            "error": None if depth.error is None else shown(depth.error),
            **(dict.fromkeys(QueueCounts.__slots__) if counts is None else asdict(counts)),
            "oldest": self._looks.oldest.get(depth.queue) if depth.pending else None,
            "out": None if gone is None else {"since": gone.at, "error": shown(gone.error or "")},
        }

    def _drain(self) -> dict[str, Any]:
        answers = self._looks.brokers.values()
        stopped = any(answer.error is not None for answer in answers)
        progress = self._looks.drain.progress(time.time(), stopped=stopped)
        return {
            "moved": self._watched.moved()[0],
            "dead_lettered": self._history.dead_lettered,
            "peak": progress.peak,
            "per_second": round(progress.per_second, 2),
            "seconds_left": None if progress.seconds_left is None else round(progress.seconds_left, 1),
        }

    def _outbox(self) -> dict[str, Any] | None:
        queue, depth = self._watched.outbox(), self._looks.outbox
        if queue is None:
            return None
        counts = None if depth is None else depth.counts
        stopped = any(answer.error is not None for answer in self._looks.brokers.values())
        progress = self._looks.outbox_drain.progress(time.time(), stopped=stopped)
        return {
            "name": queue.path,
            "missing": depth is not None and depth.missing,
            "error": None if depth is None or depth.error is None else shown(depth.error),
            "pending": None if counts is None else counts.pending,
            "dead_letter": None if counts is None else counts.dead_letter,
            "oldest": self._looks.oldest.get(queue) if depth is not None and depth.pending else None,
            "moved": self._watched.moved()[1],
            "per_second": round(progress.per_second, 2),
        }

    # The entities.

    def _entities(self, query: Query) -> dict[str, Any]:
        states, pasts, kept = self._watched.states(), self._history.pasts, self._watched.syphon_holds()
        every: dict[Entity, EntityState | None] = dict(states)
        for entity in (*pasts, *self._looks.entities):
            every.setdefault(entity, None)
        shut = {entity for entity, past in pasts.items() if not past.open}
        by_state = Counter(every.values())
        ranks = self._ranks(every, shut, query)
        rows: list[Entity] = []
        for rank in sorted(ranks):
            # A pair may know 100 000 entities, nearly all of them healthy: only as many are sorted as are shown.
            rows += heapq.nsmallest(query.limit - len(rows), ranks[rank], key=_PATH)
        return {
            "total": len(every),
            "found": sum(map(len, ranks.values())),
            "by_state": {state.value: by_state[state] for state in EntityState},
            "held": sum(1 for past in pasts.values() if past.held),
            "syphon_held": len(kept),
            "shut": len(shut),
            "refusing": sum(1 for answer in self._looks.probes.values() if answer.error is not None),
            "rows": [
                self._row(entity, every[entity], pasts.get(entity)) | {"syphon_held": entity in kept} for entity in rows
            ],
        }

    def _ranks(
        self, every: dict[Entity, EntityState | None], shut: set[Entity], query: Query
    ) -> dict[int, list[Entity]]:
        """The entities that are asked for, by how much they want to be looked at."""
        search = query.search.casefold()
        found: dict[int, list[Entity]] = {}
        for entity, state in every.items():
            if (query.state is None or state is query.state) and (not search or search in entity.path.casefold()):
                rank = _RANKS[state]
                if shut and rank > _SHUT and entity in shut:
                    rank = _SHUT
                found.setdefault(rank, []).append(entity)
        return found

    def _row(self, entity: Entity, state: EntityState | None, past: Past | None) -> dict[str, Any]:
        last = None if past is None else past.last
        ping = None if past is None else past.ping
        probe = self._looks.probes.get(entity)
        return {
            "path": entity.path,
            "kind": entity.kind.value,
            "state": None if state is None else state.value,
            "held": past is not None and past.held,
            "since": None if last is None else last.at,
            "cause": None if last is None else last.cause.value,
            "changes": [] if past is None else [[round(at, 3), entered.value] for at, entered, _ in past.changes],
            "ping": None if ping is None else {"at": ping.at, "ok": ping.ok, "error": shown(ping.error or "")},
            "shut": None if past is None or past.open else shown(past.error or ""),
            "probe": None if probe is None else _answer(probe),
            "consumers": self._consumers(past),
        }

    def _consumers(self, past: Past | None) -> dict[str, Any] | None:
        """What consumers of this pair can read of a queue with continuity; None while they can read all."""
        now = time.time()
        unread = 0.0 if past is None else past.unread(now)
        if past is None or not (past.lost or unread):
            return None
        watched = max(now - self._since, unread, 1e-9)
        return {
            "lost": {side.value: at for side, at in past.lost.items()},
            "unread": round(unread, 3),
            "available": round(1 - unread / watched, 6),
        }


def _answer(answer: Answer) -> dict[str, Any]:
    return {"at": answer.at, "ok": answer.error is None, "seconds": round(answer.seconds, 4), "error": answer.error}
