"""What was sent, reported and delivered; and the judge, who compares that with what the primary holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from pairmq.core import PairOptions
from pairmq.core.envelope import PATH
from pairmq.memory import Calls, Operation
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
from pairmq.testing._simulated import SimulatedBroker
from pairmq.testing.history import Result
from pairmq.testing.judge import Account, difference

Key = tuple[str, str]
"""One message: the path of its entity, and its id."""


class Stored(NamedTuple):
    """A message that a broker has stored; ``confirmed``: its writer got the confirmation."""

    entity: Entity
    message: Message
    confirmed: bool
    deliveries: Callable[[], int]
    """Returns how often it was delivered to a receiver so far."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The tested code's promise, at a virtual second, that a message will arrive; identified by the machine."""

    at: float
    entity: Entity
    identity: Hashable


@dataclass(frozen=True, slots=True)
class Answer:
    """The result that the caller of a send got, and after how many seconds."""

    outcome: SendOutcome
    took: float


class RecordingBroker(SimulatedBroker):
    """A simulated broker that remembers each message that it has ever stored."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        super().__init__(name)
        self.copies: list[Stored] = []
        self._ledger = ledger
        self._losing = False

    async def act(self, operation: Operation, entity: Entity | None, calls: Calls, *, again: bool = False) -> bool:
        """As the broker does; whether the confirmation will be lost is noted, as storing follows in the same step."""
        self._losing = await super().act(operation, entity, calls, again=again)
        return self._losing

    def store(self, entity: Entity, message: Message) -> None:
        """Store a message, and remember it."""
        super().store(entity, message)
        stored = next(reversed(self.queues[entity].stored.values()), None)
        deliveries = (lambda: 0) if stored is None else lambda: stored.deliveries
        self.copies.append(Stored(entity, message, not self._losing, deliveries))
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
        """A process was killed with sends in flight: their outcomes are unknown."""
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


Identity = Callable[[Message], Hashable]

_EXACT = 0.05  # s: virtual time has no excuse for more


class BrokenPromise(AssertionError):
    """A promise was broken; the text says which, with the message's history."""


class Judge:
    """Finds what is wrong once everything has been healed and had its time."""

    def __init__(
        self,
        ledger: Ledger,
        primary: RecordingBroker,
        secondary: RecordingBroker,
        options: PairOptions,
        identity: Identity,
    ) -> None:
        self._ledger = ledger
        self._options = options
        self._identity = identity
        self._copies = primary.copies
        self._home: dict[Key, list[Stored]] = defaultdict(list)
        self._parked: dict[Key, list[Stored]] = defaultdict(list)
        for broker, copies in ((primary, self._home), (secondary, self._parked)):
            for copy in broker.copies:
                copies[key_of(copy.entity, copy.message)].append(copy)

    def problems(self) -> Iterator[tuple[str, tuple[Key, ...]]]:
        """Everything that is wrong, with the messages that it is about."""
        for key in {**self._ledger.sends, **self._home}:
            for _, text in self._account(key).judged(_named(key)):
                yield text, (key,)
            for problem in (self._untrue(key), self._altered(key)):
                if problem:
                    yield f"{_named(key)} {problem}", (key,)
        for promise in self._ledger.promises:
            yield from self._broken(promise)

    # What PairMQ promises.

    def _account(self, key: Key) -> Account:
        ledger, home, parked = self._ledger, self._home[key], self._parked[key]
        sends, moves = ledger.sends.get(key, []), ledger.moved[key]
        results: list[Result | None] = [Result[send.outcome.name] for send in sends]
        if ledger.cut_off or (not sends and key in ledger.originals):
            results.append(None)
        confirmed = results.count(Result.PRIMARY)
        doubts = max(ledger.doubts[key], sum(not copy.confirmed for copy in home))
        brought = sum(copy.deliveries() for copy in parked)
        excused = self._rightly_set_aside(key)
        # A process that was killed with sends in flight reports none of them.
        announced = (
            ledger.cut_off
            or any(send.maybe_duplicate or send.outcome is SendOutcome.UNKNOWN for send in sends)
            or any(move.maybe_duplicate or move.redelivered or not move.completed for move in moves)
        )
        return Account(
            results,
            len(home),
            next((str(copy.entity) for copy in (*home, *parked)), ""),
            excused=excused,
            # A syphon that was closed in doubt does not report its attempt. If the message then expires, its
            # dead-letter explains the copies.
            announced=announced or (excused and not any(copy.confirmed for copy in home)),
            reasons=None if ledger.cut_off else (confirmed, doubts, brought),
        )

    def _rightly_set_aside(self, key: Key) -> bool:
        reasons = {event.reason for event in self._ledger.set_aside[key]}
        expired = self._options.ttl_policy == "elapse" and "TTLExpiredException" in reasons
        forbidden = not self._options.allows(key[0]) and "destination-not-allowed" in reasons
        return expired or forbidden

    def _altered(self, key: Key) -> str | None:
        original = self._ledger.originals.get(key)
        if original is None:
            return None
        for copy in self._home[key]:
            found = copy.message
            if self._options.ttl_policy == "elapse":
                found = replace(found, time_to_live=original.time_to_live)
            if problem := difference(original, found):
                return f"came to the primary altered: {problem}"
        return None

    def _untrue(self, key: Key) -> str | None:
        """The result that the caller of a send got must match the event, and be in time."""
        for answer, send in zip(self._ledger.answers.get(key, ()), self._ledger.sends.get(key, ()), strict=False):
            if answer.outcome is not send.outcome:
                return f"was {answer.outcome} to its caller and {send.outcome} to those who watch"
            if answer.took > self._options.send_timeout + _EXACT:
                return f"took {answer.took:.3f} s to send, and had {self._options.send_timeout:g} s"
        return None

    # What the tested code promises.

    def _broken(self, promise: Promise) -> Iterator[tuple[str, tuple[Key, ...]]]:
        found = [
            copy
            for copy in self._copies
            if copy.entity == promise.entity and self._identity(copy.message) == promise.identity
        ]
        keys = tuple(dict.fromkeys(key_of(copy.entity, copy.message) for copy in found))
        if not found:
            related = tuple(key for key in self._ledger.sends if key[0] == promise.entity.path)
            text = (
                f"your code promised {promise.identity!r} to {promise.entity} at {promise.at:.3f} s, "
                "and it never came. "
                "Did it take an exception for a success, or keep the message where a crash could reach it?"
            )
            yield text, related
        elif len(keys) > 1:
            ids = ", ".join(repr(key[1]) for key in keys)
            text = (
                f"{promise.identity!r} came to {promise.entity} under {len(keys)} message ids ({ids}): who drops "
                "second copies by their id keeps them all. Give a message its id once and for all."
            )
            yield text, keys


def _named(key: Key) -> str:
    return f"message {key[1]!r} to {key[0]}"
