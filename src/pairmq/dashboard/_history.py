"""What happened to a pair since the dashboard began to watch, bounded in memory, as sentences for the page's list."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from pairmq.dashboard._looks import plural, shown
from pairmq.model import Entity, EntityState, events

MOST_ENTITIES = 5000
"""Entities whose past is kept; of the others only the present state is shown."""

MOST_CHANGES = 64
"""Changes of one entity that are kept."""

MOST_LINES = 200
"""Lines of the list of events."""

_LOOK_BACK = 16  # lines among which an event looks for one that says the same


class Change(NamedTuple):
    """An entity entered a state; ``held`` if an operator failed it over, without pings."""

    at: float
    state: EntityState
    held: bool


@dataclass(slots=True, eq=False)
class Past:
    """What is known of one entity."""

    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    last: events.StateChanged | None = None
    ping: events.PingCompleted | None = None
    open: bool = True  # the syphon delivers to it
    error: str | None = None  # why the syphon does not
    # The brokers that a consumer of this pair can't read, with continuity, and since when.
    lost: dict[events.Side, float] = field(default_factory=dict)
    unread_since: float | None = None
    unread_time: float = 0.0

    def read_by_consumers(self, event: events.ReceiverChanged) -> None:
        """A consumer of the queue lost a broker, or reads it again."""
        if event.open:
            self.lost.pop(event.side, None)
        else:
            self.lost.setdefault(event.side, event.at)
        if len(self.lost) == len(events.Side):
            self.unread_since = event.at if self.unread_since is None else self.unread_since
        elif self.unread_since is not None:
            self.unread_time += max(0.0, event.at - self.unread_since)
            self.unread_since = None

    def unread(self, now: float) -> float:
        """Seconds in which consumers could read neither broker."""
        return self.unread_time + (0.0 if self.unread_since is None else max(0.0, now - self.unread_since))

    @property
    def held(self) -> bool:
        return bool(self.changes) and self.changes[-1].held


class HistoryLine:
    __slots__ = ("at", "count", "last_at", "sentence")

    def __init__(self, at: float, sentence: Sentence) -> None:
        self.at = self.last_at = at
        self.sentence = sentence
        self.count = 1


class History:
    """Takes events, not those of single messages, so that a send costs nothing more; keeps what a page shows."""

    def __init__(self) -> None:
        self.dead_lettered = 0
        """Messages that this process's syphon dead-lettered."""
        self.ended: events.PairEnded | None = None
        self._pasts: OrderedDict[Entity, Past] = OrderedDict()  # what changed last is last
        self._lines: deque[HistoryLine] = deque(maxlen=MOST_LINES)  # newest first
        self._out: dict[str, events.RotationChanged] = {}

    @property
    def pasts(self) -> Mapping[Entity, Past]:
        return MappingProxyType(self._pasts)

    @property
    def out(self) -> Mapping[str, events.RotationChanged]:
        """The backlog queues that are out of use, by name."""
        return MappingProxyType(self._out)

    def lines(self) -> Iterator[HistoryLine]:
        return iter(self._lines)

    def on_event(self, event: events.Event) -> None:
        match event:
            case events.StateChanged():
                past = self._past(event.entity)
                if not past.changes:
                    # The time in the previous state counts, too: it may have begun before this was watching.
                    past.changes.append(Change(event.at - event.lasted, event.previous, False))
                past.changes.append(Change(event.at, event.current, event.cause is events.Cause.HELD))
                past.last = event
                if event.current is not EntityState.FAILED_OVER:
                    past.ping = None
            case events.PingCompleted():
                self._past(event.entity).ping = event
            case events.DestinationChanged():
                past = self._past(event.entity)
                past.open, past.error = event.open, event.error
            case events.ReceiverChanged():
                self._past(event.entity).read_by_consumers(event)
            case events.RotationChanged(in_use=True):
                self._out.pop(event.queue, None)
            case events.RotationChanged():
                self._out[event.queue] = event
            case events.MessageDeadLettered():
                self.dead_lettered += 1
            case events.PairEnded():
                self.ended = event
        sentence = sentence_of(event)
        if sentence is not None:
            self._list(event.at, sentence)

    def _past(self, entity: Entity) -> Past:
        past = self._pasts.get(entity)
        if past is None:
            past = self._pasts[entity] = Past()
            if len(self._pasts) > MOST_ENTITIES:
                self._pasts.popitem(last=False)
        self._pasts.move_to_end(entity)
        return past

    def _list(self, at: float, sentence: Sentence) -> None:
        """Enter a line; one that says the same again only counts, or a broken queue would push all else out."""
        for line in islice(self._lines, _LOOK_BACK):
            if line.sentence.key == sentence.key:
                line.count += 1
                line.last_at = at
                line.sentence = sentence
                return
        self._lines.appendleft(HistoryLine(at, sentence))


class Tone(enum.StrEnum):
    """How much a line of the list wants to be looked at."""

    GOOD = "good"
    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Sentence:
    """What one event says; those of one key say the same again, and the list shows them as one, with their count."""

    tone: Tone
    subject: str
    text: str
    key: tuple[object, ...]


_STATE_TONES = {
    EntityState.HEALTHY: Tone.GOOD,
    EntityState.FAILING: Tone.WARN,
    EntityState.FAILED_OVER: Tone.BAD,
    EntityState.DRAINING: Tone.PLAIN,
}


def sentence_of(event: events.Event) -> Sentence | None:
    """Describe an event; None for one that is not listed, as pings: a long outage would fill the list with them."""
    match event:
        case events.StateChanged():
            text = _change(event)
            return Sentence(_STATE_TONES[event.current], str(event.entity), text, (event.at, text))
        case events.RotationChanged(queue=queue, in_use=True, left=left):
            text = f"is used again; {plural(left, 'backlog queue')} in use"
            return Sentence(Tone.GOOD, queue, text, ("rotation", queue, True))
        case events.RotationChanged(queue=queue, left=left, error=error):
            text = f"is out of use, {left} left: {shown(error or '')}"
            return Sentence(Tone.BAD if left == 0 else Tone.WARN, queue, text, ("rotation", queue, False))
        case events.DestinationChanged(entity=entity, open=True):
            return Sentence(Tone.GOOD, str(entity), "accepts the syphon's messages again", ("gate", entity, True))
        case events.DestinationChanged(entity=entity, error=error):
            text = f"accepts none of the syphon's messages, they wait: {shown(error or '')}"
            return Sentence(Tone.WARN, str(entity), text, ("gate", entity, False))
        case events.ReceiverChanged(entity=entity, side=side, open=True):
            return Sentence(
                Tone.GOOD, str(entity), f"a consumer reads the {side} again", ("receiver", entity, side, True)
            )
        case events.ReceiverChanged(entity=entity, side=side, error=error):
            text = f"a consumer can't read the {side}: {shown(error or '')}"
            return Sentence(Tone.WARN, str(entity), text, ("receiver", entity, side, False))
        case events.MessageDeadLettered(queue=queue, reason=reason, entity=path):
            text = f"a message for {shown(path or '(unknown)', 80)} was dead-lettered: {shown(reason, 60)}"
            text += f": {shown(event.description)}" if event.description else ""
            return Sentence(Tone.BAD, queue, text, ("dead-letter", queue, reason, path))
        case events.SyphonFailed(queue=queue, error=error):
            return Sentence(Tone.WARN, queue, f"the syphon retries: {shown(error)}", ("syphon", error))
        case events.BacklogQueueChecked(queue=queue, created=True):
            return Sentence(Tone.PLAIN, queue, "was made", ("made", queue))
        case events.Warned(subject=subject, text=text):
            return Sentence(Tone.WARN, shown(subject, 80), shown(text), ("warned", text))
        case events.PairOpened():
            return Sentence(Tone.PLAIN, "", "the pair opened", ("opened", event.at))
        case events.PairEnded(fault=None):
            return Sentence(Tone.WARN, "", "the pair was closed", ("ended",))
        case events.PairEnded(fault=fault):
            return Sentence(Tone.BAD, "", f"the pair has faulted: {shown(fault or '')}", ("ended",))
        case _:
            return None


def _change(event: events.StateChanged) -> str:
    previous, current = (state.value.replace("-", " ") for state in (event.previous, event.current))
    words = {
        events.Cause.HELD: "was held in failover by an operator",
        events.Cause.FORCED: "was failed over by an operator",
        events.Cause.MARKED_HEALTHY: f"was marked healthy by an operator, and is {current}",
    }
    text = words.get(event.cause, f"is {current}, was {previous}: {event.cause.value}")
    counted = [f"{count} {what}" for count, what in ((event.diverted, "diverted"), (event.failed, "failed")) if count]
    return f"{text} ({', '.join(counted)})" if counted else text
