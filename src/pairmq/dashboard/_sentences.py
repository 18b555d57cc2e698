"""Events as sentences for the page's list."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pairmq.dashboard._texts import plural, shown
from pairmq.model import EntityState
from pairmq.model.events import (
    BacklogQueueChecked,
    Cause,
    DestinationChanged,
    Event,
    MessageDeadLettered,
    PairEnded,
    PairOpened,
    RotationChanged,
    StateChanged,
    SyphonFailed,
    Warned,
)


class Tone(enum.StrEnum):
    """How much a line of the list wants to be looked at."""

    GOOD = "good"
    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Sentence:
    """What one event says.

    Args:
        tone: how much it wants to be looked at.
        subject: the entity or queue it is about; empty for the pair.
        text: what happened.
        key: of events that say the same again; the list shows them as one, with their count.
    """

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


def sentence_of(event: Event) -> Sentence | None:
    """Say what an event tells; None for one that the list leaves out.

    Pings are left out: an entity's row shows its last one, and a long outage would fill the list with them.
    """
    match event:
        case StateChanged():
            text = _change(event)
            return Sentence(_STATE_TONES[event.current], str(event.entity), text, (event.at, text))
        case RotationChanged(queue=queue, in_use=True, left=left):
            text = f"is used again; {plural(left, 'backlog queue')} in use"
            return Sentence(Tone.GOOD, queue, text, ("rotation", queue, True))
        case RotationChanged(queue=queue, left=left, error=error):
            text = f"is out of use, {left} left: {shown(error or '')}"
            return Sentence(Tone.BAD if left == 0 else Tone.WARN, queue, text, ("rotation", queue, False))
        case DestinationChanged(entity=entity, open=True):
            return Sentence(Tone.GOOD, str(entity), "takes the syphon's messages again", ("gate", entity, True))
        case DestinationChanged(entity=entity, error=error):
            text = f"takes none of the syphon's messages, they wait: {shown(error or '')}"
            return Sentence(Tone.WARN, str(entity), text, ("gate", entity, False))
        case MessageDeadLettered(queue=queue, reason=reason, entity=path):
            text = f"a message for {shown(path or '(unknown)', 80)} was dead-lettered: {shown(reason, 60)}"
            text += f": {shown(event.description)}" if event.description else ""
            return Sentence(Tone.BAD, queue, text, ("dead-letter", queue, reason, path))
        case SyphonFailed(queue=queue, error=error):
            return Sentence(Tone.WARN, queue, f"the syphon tries again: {shown(error)}", ("syphon", error))
        case BacklogQueueChecked(queue=queue, created=True):
            return Sentence(Tone.PLAIN, queue, "was made", ("made", queue))
        case Warned(subject=subject, text=text):
            return Sentence(Tone.WARN, shown(subject, 80), shown(text), ("warned", text))
        case PairOpened():
            return Sentence(Tone.PLAIN, "", "the pair opened", ("opened", event.at))
        case PairEnded(fault=None):
            return Sentence(Tone.WARN, "", "the pair was closed", ("ended",))
        case PairEnded(fault=fault):
            return Sentence(Tone.BAD, "", f"the pair has faulted: {shown(fault or '')}", ("ended",))
        case _:
            return None


def _change(event: StateChanged) -> str:
    previous, current = (state.value.replace("-", " ") for state in (event.previous, event.current))
    words = {
        Cause.HELD: "was held in failover by an operator",
        Cause.FORCED: "was failed over by an operator",
        Cause.MARKED_HEALTHY: f"was marked healthy by an operator, and is {current}",
    }
    text = words.get(event.cause, f"is {current}, was {previous}: {event.cause.value}")
    counted = [f"{count} {what}" for count, what in ((event.diverted, "diverted"), (event.failed, "failed")) if count]
    return f"{text} ({', '.join(counted)})" if counted else text
