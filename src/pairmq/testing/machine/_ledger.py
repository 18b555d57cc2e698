"""What was sent, what was said of it, and what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from pairmq.core.envelope import PATH
from pairmq.model import Entity, Message, Receipt, Route, SendError, SendRefused
from pairmq.model.events import (
    AttemptFailed,
    Event,
    MessageDeadLettered,
    MessageMoved,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    StateChanged,
)
from pairmq.observe._log import describe
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing._simulated import Operation, SimulatedBroker

Key = tuple[str, str]
"""One message: the path of its entity, and its id."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A message that a broker has stored.

    Args:
        at: virtual seconds.
        entity: where; a backlog queue, or an entity of the primary.
        message: as it was stored.
        confirmed: whoever wrote it was told so.
        deliveries: tells how many times it was handed to a receiver so far.
    """

    at: float
    entity: Entity
    message: Message
    confirmed: bool
    deliveries: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Promise:
    """The tested code's word that a message will arrive.

    Args:
        at: virtual seconds.
        entity: where.
        identity: of the message, as the machine's ``identity`` tells it.
    """

    at: float
    entity: Entity
    identity: Hashable


@dataclass(frozen=True, slots=True)
class Answer:
    """What the caller of a send was told.

    Args:
        outcome: one of the four ends of a send.
        took: seconds.
    """

    outcome: SendOutcome
    took: float


class RecordingBroker(SimulatedBroker):
    """A simulated broker that remembers each message that it has ever stored.

    Args:
        name: in its endpoint.
        ledger: takes the story.
    """

    def __init__(self, name: str, ledger: Ledger) -> None:
        super().__init__(name)
        self.copies: list[Copy] = []
        self._ledger = ledger
        self._losing = False

    async def act(self, operation: Operation, entity: Entity | None, *, count: bool = True) -> bool:
        """As the broker does; whether the confirmation will be lost is noted, as storing follows in the same step."""
        self._losing = await super().act(operation, entity, count=count)
        return self._losing

    def store(self, entity: Entity, message: Message) -> None:
        """Store a message, and remember it."""
        super().store(entity, message)
        stored = next(reversed(self.queues[entity].stored.values()), None)
        self.copies.append(
            Copy(
                asyncio.get_running_loop().time(),
                entity,
                message,
                not self._losing,
                (lambda: 0) if stored is None else lambda: stored.deliveries,
            )
        )
        suffix = ", and its confirmation is lost" if self._losing else ""
        self._ledger.note(f"the {self.name} stores it in {entity}{suffix}", key_of(entity, message))


class Ledger:
    """All that was said of messages, and the story of everything in its order."""

    def __init__(self) -> None:
        self.sends: dict[Key, list[SendCompleted]] = defaultdict(list)
        self.doubts: Counter[Key] = Counter()
        """Attempts at the primary that may have been applied although nothing confirmed them."""
        self.moved: dict[Key, list[MessageMoved]] = defaultdict(list)
        self.set_aside: dict[Key, list[MessageDeadLettered]] = defaultdict(list)
        self.originals: dict[Key, Message] = {}
        """What the machine itself has sent."""
        self.answers: dict[Key, list[Answer]] = defaultdict(list)
        self.promises: list[Promise] = []
        self.cut_off = False
        """A process was killed with sends in flight: of these nobody can tell what came."""
        self._story: list[tuple[float, Key | None, str]] = []
        self._now: Callable[[], float] = lambda: 0.0

    def follow(self, now: Callable[[], float]) -> None:
        """Take the time from a clock from now on."""
        self._now = now

    def note(self, text: str, key: Key | None = None) -> None:
        """Add a line to the story: of one message, or of the whole world."""
        self._story.append((self._now(), key, text))

    def take(self, event: Event) -> None:
        """Enter what a pair reports."""
        match event:
            case SendCompleted():
                key = (event.entity.path, event.message_id)
                self.sends[key].append(event)
            case AttemptFailed():
                key = (event.entity.path, event.message_id)
                self.doubts[key] += event.maybe_applied and event.queue is None
            case MessageMoved():
                key = (event.entity.path, event.message_id)
                self.moved[key].append(event)
            case MessageDeadLettered():
                key = (event.entity or "", event.message_id or "")
                self.set_aside[key].append(event)
            case StateChanged() | RotationChanged():
                self._story.append((event.at - WALL_EPOCH, None, describe(event)))
                return
            case _:
                return
        self._story.append((event.at - WALL_EPOCH, key, describe(event)))

    def story(self, *keys: Key) -> list[str]:
        """The story of some messages, among all that struck the world."""
        return [f"{at:10.3f} s  {text}" for at, key, text in self._story if key is None or key in keys]


def outcome_of(result: Receipt | SendError) -> SendOutcome:
    """What a receipt or an error says."""
    if isinstance(result, Receipt):
        return SendOutcome.PRIMARY if result.route is Route.PRIMARY else SendOutcome.BACKLOG
    return SendOutcome.REFUSED if isinstance(result, SendRefused) else SendOutcome.UNKNOWN


def key_of(entity: Entity, message: Message) -> Key:
    """The key of a message, also of one in its envelope."""
    return str(message.application_properties.get(PATH, entity.path)), message.message_id or ""
