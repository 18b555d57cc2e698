"""What happened to messages, as facts for the judge: calls, their results, and the brokers' operations.

Simulations and runs of chaos write the same history, and `pairmq.testing.judge` judges it. Truth comes from the
brokers' side (`Copy`); what the framework reported stands apart (`Sent`, `Note`). Each fact has a *tick* beside its
instant: in virtual time much happens at one instant, and ticks give the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from pairmq.model import (
    Entity,
    Message,
    PairClosed,
    PairFaulted,
    Receipt,
    Route,
    SendError,
    SendRefused,
    TransportError,
)
from pairmq.model.events import Event
from pairmq.pair import PairSender
from pairmq.transport import is_nothing_sent

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"

CANARIES: Final = 90_000_000
"""The numbers, from this one on, of the messages that are sent when all is healed."""


class Result(enum.StrEnum):
    """The result that a caller got for one message."""

    PRIMARY = "accepted by the primary"
    BACKLOG = "accepted by a backlog queue"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled by its caller"
    CRASHED = "an exception that no send may raise"

    @property
    def accepted(self) -> bool:
        """Whether it was promised to arrive."""
        return self in (Result.PRIMARY, Result.BACKLOG)

    @classmethod
    def of(cls, outcome: Receipt | SendError | Result) -> Result:
        """What a receipt or an error says."""
        if isinstance(outcome, Receipt):
            return cls.PRIMARY if outcome.route is Route.PRIMARY else cls.BACKLOG
        if isinstance(outcome, Result):
            return outcome
        return cls.REFUSED if isinstance(outcome, SendRefused) else cls.UNKNOWN


async def send_and_report(
    sender: PairSender,
    messages: Sequence[Message],
    timeout: float | None,
    report: Callable[[Sequence[Receipt | SendError | Result]], None],
    crashed: Callable[[str], None],
    *,
    together: bool,
    cancel_after: float | None = None,
) -> bool:
    """Send a batch or one message through a pair, and report what the caller gets; returns whether the pair goes on."""
    if cancel_after is not None:
        sending = send_and_report(sender, messages, timeout, report, crashed, together=together)
        task = asyncio.create_task(sending, name="pairmq cancelled send")
        await asyncio.wait((task,), timeout=cancel_after)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return True
    results: Sequence[Receipt | SendError | Result]
    count, goes_on = len(messages), True
    try:
        if together:
            results = await sender.send_batch(messages, timeout=timeout)
        else:
            results = (await sender.send(messages[0], timeout=timeout),)
    except SendError as error:
        results = (error,)
    except (PairClosed, PairFaulted):
        results, goes_on = [Result.REFUSED] * count, False
    except asyncio.CancelledError:
        report([Result.CANCELLED] * count)
        raise
    except Exception as error:
        crashed(f"a send raised {type(error).__name__}: {error}")
        results = [Result.CRASHED] * count
    if len(results) != count:
        crashed(f"{len(results)} results for a batch of {count}")
    report(results)
    return goes_on


class WriteResult(NamedTuple):
    """The result that a broker's client got for one message of a write."""

    confirmed: bool
    doubtful: bool
    """It may have been applied all the same."""
    kind: str = ""
    reason: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The result of a write that failed, or that its time limit cancelled."""
        if isinstance(error, TransportError):
            return cls(False, error.maybe_applied, error.kind.value, error.reason.value)
        # A transport may say of a cancellation that it had written nothing.
        return cls(False, not is_nothing_sent(error), "cut", type(error).__name__)

    def __str__(self) -> str:
        if self.confirmed:
            return "confirmed"
        return f"{self.kind} ({self.reason}){', may have been applied' if self.doubtful else ''}"


CONFIRMED = WriteResult(True, False)
CUT = WriteResult(False, True, "cut", "cancelled or timed out")
KILLED = WriteResult(False, True, "cut", "killed")


@dataclass(slots=True)
class Life:
    """One run of one process, from its start to its end.

    ``left`` and ``locks_left`` are what it left behind after a close: tasks, and messages that it held locked although
    nothing prevented it from releasing them.
    """

    process: str
    number: int
    syphon: bool
    options: str
    skew: float
    at: float
    tick: int
    opened_at: float | None = None
    closing_at: float | None = None
    closed_at: float | None = None
    ended_at: float | None = None
    killed: bool = False
    left: tuple[str, ...] = ()
    locks_left: tuple[int, ...] = ()

    name: str = field(init=False)
    """``a/2``: the second run of process a."""

    def __post_init__(self) -> None:
        self.name = f"{self.process}/{self.number}"

    def __hash__(self) -> int:
        return hash((self.process, self.number))


@dataclass(slots=True)
class Sent:
    """One message passed to a pair, and its result."""

    number: int
    life: str
    sender: str
    entity: Entity
    message: Message
    at: float
    tick: int
    timeout: float
    result: Result | None = None
    """None when its process was killed first."""
    ended_at: float | None = None
    end_tick: int | None = None
    maybe_duplicate: bool = False
    queue: str | None = None
    error: str = ""


@dataclass(slots=True)
class Attempt:
    """One write to a broker, of one message or several."""

    number: int
    life: str
    broker: str
    entity: Entity
    syphon: bool
    messages: tuple[int | None, ...]
    at: float
    tick: int
    results: tuple[WriteResult, ...] | None = None
    """One for each message; None when the process was killed first."""
    ended_at: float | None = None
    end_tick: int | None = None

    def result(self, number: int) -> WriteResult:
        """The result for one of its messages."""
        return KILLED if self.results is None else self.results[self.messages.index(number)]


class Handover(NamedTuple):
    """One delivery of a copy to a receiver: an application's, or else a syphon's.

    ``position`` is that of the delivery; empty where it is not known.
    """

    at: float
    tick: int
    life: str
    consumer: bool = False
    position: str = ""


@dataclass(slots=True)
class Copy:
    """One message in one broker, from the write that was applied until it was gone.

    ``message_number`` is None for foreign messages; ``gone`` is how it ended: ``completed``, ``dead-lettered``,
    ``expired`` or ``deleted`` (with its queue).
    """

    number: int
    message_number: int | None
    broker: str
    entity: Entity
    message: Message
    attempt: int | None
    at: float
    tick: int
    handovers: list[Handover] = field(default_factory=list)
    ran_out: list[tuple[int, float]] = field(default_factory=list)
    """The ticks and instants at which a lock of it ran out of its time."""
    released: list[int] = field(default_factory=list)
    """The ticks at which the receiver that held it released it."""
    gone: str = ""
    gone_at: float | None = None
    gone_tick: int | None = None
    reason: str = ""


@dataclass(slots=True)
class Handling:
    """One delivery that a consumer handled, from the moment it got it.

    ``number`` is None for a message that was never sent; ``side`` and ``position`` are what its delivery named;
    ``settled`` is whether its completion was confirmed, None when the process was killed first.
    """

    number: int | None
    entity: Entity
    life: str
    side: str
    position: str
    message: Message
    at: float
    tick: int
    settled: bool | None = None
    ended_at: float | None = None


@dataclass(slots=True)
class Reading:
    """A time in which a consumer had a receiver of a queue; ``until`` is None to the end of its process."""

    life: str
    entity: Entity
    at: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """An event of the framework's."""

    at: float
    tick: int
    life: str
    event: Event


@dataclass(kw_only=True, slots=True)
class History:
    """All facts that the judge of messages needs.

    A fact that can't be observed is left out; one that is known only within bounds is written so that it raises no
    violation.
    """

    lives: list[Life] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    handlings: list[Handling] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    consumed: frozenset[Entity] = frozenset()
    """The queues of the primary that consumers have read to their end."""
    in_order: bool = True
    """Whether the order of the primary's copies is known; not where several consumers took them before it was seen."""
    notes: list[Note] = field(default_factory=list)
    ticks: int = 0
    exact: bool = True
    """Brokers report each write with its attempt, and what follows from something else is at the same instant."""
    grace: float = 0.05
    """Seconds by which anything may be late: virtual time has no excuse for more."""
    lags: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Of each life: when its event loop should have run, and when it did."""

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks
