"""The machine that users subclass."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any, ClassVar, Final, Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pairmq.core import PairOptions
from pairmq.memory import Operation
from pairmq.model import Entity, Message, PairClosed, Receipt, SendError
from pairmq.pair import Pair, PairSender
from pairmq.testing import strategies as pst
from pairmq.testing._simulated import TEST_OPTIONS, Fault, SimulatedBroker, entity_named
from pairmq.testing.history import Result
from pairmq.testing.machine._world import Answer, Judge, Promise, World, key_of

T = TypeVar("T")

_FAULTS: Final = {
    "stops": Fault.DOWN,
    "hangs": Fault.HANG,
    "throttles": Fault.BUSY,
    "stumbles": Fault.TRANSIENT,
    "slows": Fault.SLOW,
}

TROUBLES: Final = frozenset((*_FAULTS, "confirmations", "queues", "restart", "crash", "operator"))
"""What the machine does by itself; a subclass may leave some out by its ``troubles``."""

_BROKERS = st.sampled_from(("primary", "secondary"))
_LASTING = st.none() | st.sampled_from((1, 5, 20, 120))


# Few fields, so that a failing example can be read: whether each comes through is asked elsewhere.
_MESSAGES = st.builds(
    Message,
    st.binary(max_size=4),
    session_id=st.none() | st.sampled_from(("s1", "s2")),
    priority=st.none() | st.integers(0, 9),
    application_properties=st.dictionaries(st.sampled_from("ab"), pst.property_values(nested=False), max_size=2),
)


def _while(seconds: int | None) -> str:
    return "" if seconds is None else f" for {seconds} s"


def _of_machine(name: str) -> st.SearchStrategy[Any]:
    """A strategy that asks the machine, as subclasses choose."""
    return st.runner().flatmap(lambda machine: getattr(machine, name)())


class FailoverMachine(RuleBasedStateMachine):
    """Puts code that uses a pair through outages, crashes and lost confirmations; subclass it.

    A rule of yours is an ordinary method; it runs your coroutines by `run`, as hypothesis awaits none. Everything
    happens in one thread and in virtual time: an hour costs milliseconds, and one example is one run, everywhere.
    Code that waits for real sockets, threads or ``time.sleep`` can't take part.

    At the end of each example all is healed, time passes, and everything must be as promised: what was accepted has
    come to the primary, what was refused has not, second copies are explained, what *you* promised (`promise`) is there
    under one message id, every entity is healthy, every backlog queue empty, and nothing hangs or is left running. Else
    `BrokenPromise` says what is wrong, with the message's history.

    Attributes:
        options: of the pair.
        entities: made on the primary: paths of queues, ``"topic:news"`` for a topic, or `pairmq.Entity`.
        syphon: where it runs: ``"inside"`` the process under test, or ``"beside"`` it in one of its own.
        troubles: what may happen, of `TROUBLES`; fewer find what they can find sooner.
        traffic: the machine sends messages of its own too.
        messages: these; their ids are the machine's.
        patience: virtual seconds that one call of `run` may take; what takes longer hangs.
    """

    options: ClassVar[PairOptions] = TEST_OPTIONS
    entities: ClassVar[Sequence[str | Entity]] = ("orders", "prices")
    syphon: ClassVar[Literal["inside", "beside"]] = "inside"
    troubles: ClassVar[frozenset[str]] = TROUBLES
    traffic: ClassVar[bool] = True
    messages: ClassVar[st.SearchStrategy[Message]] = _MESSAGES
    patience: ClassVar[float] = 3600.0

    def __init__(self) -> None:
        unknown = sorted(self.troubles - TROUBLES)
        if unknown:
            raise ValueError(f"unknown troubles {', '.join(unknown)}: known are {', '.join(sorted(TROUBLES))}")
        super().__init__()
        # Hypothesis may replay an example while it handles another exception: only a new one is this example's.
        self._handling = sys.exc_info()[1]
        self._numbers = 0
        entities = [entity_named(entity) for entity in self.entities]
        self._world = World(self.options, entities, beside=self.syphon == "beside", patience=self.patience)
        try:
            self.run(self.process_started())
        except BaseException:
            self._world.bury()
            raise

    # For subclasses.

    @property
    def pair(self) -> Pair:
        """The open pair of the process under test: another one after each restart."""
        return self._world.process.pair

    @property
    def primary(self) -> SimulatedBroker:
        """The primary, to look into or to make fail in a way of your own."""
        return self._world.primary

    @property
    def secondary(self) -> SimulatedBroker:
        """The secondary, likewise."""
        return self._world.secondary

    @property
    def now(self) -> float:
        """Virtual seconds since the start of the example."""
        return self._world.now

    async def process_started(self) -> None:
        """Make what lives as long as a process, such as the objects under test; called at each start, the pair is open.

        The first call comes from ``__init__``. What has to outlive a crash does not belong here.
        """

    def identity(self, message: Message) -> Hashable:
        """Return what identifies a message to the code under test, for `promise`; here the body."""
        return message.body

    def promise(self, entity: str | Entity, identity: Hashable) -> None:
        """Record that the code under test has promised a delivery.

        At the end at least one message of that `identity` must have come to the primary's entity, and all of them under
        one message id, which no message of another promise has.
        """
        self._world.ledger.promises.append(Promise(self.now, entity_named(entity), identity))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the process under test to its end, in virtual time.

        Returns:
            What it returns. What it raises is raised here.

        Raises:
            BrokenPromise: it hangs: nothing is left that could wake it, or `patience` is over.
        """
        return self._world.wait_for(coroutine, self._world.process)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine of the process under test: it goes on whenever time passes, and a crash kills it.

        It must come to an end by itself, as the machine waits for it before it judges.
        """
        task = self._world.begin(coroutine, self._world.process)
        self._world.keep(task)
        return task

    def note(self, text: str) -> None:
        """Add a line to the history that is shown on failure."""
        self._world.ledger.note(text)

    # The rules that come with it.

    @precondition(lambda self: self.traffic)
    @rule(entity=_of_machine("_paths"), message=_of_machine("_messages"))
    def sends(self, entity: str, message: Message) -> None:
        """Send a message and wait for its result."""
        self.run(self._send(entity_named(entity), [message]))

    @precondition(lambda self: self.traffic)
    @rule(entity=_of_machine("_paths"), messages=st.lists(_of_machine("_messages"), min_size=1, max_size=4))
    def begins_to_send(self, entity: str, messages: list[Message]) -> None:
        """Send a few messages concurrently, while everything else continues."""
        self.start(self._send(entity_named(entity), messages))

    @rule(seconds=st.sampled_from((1, 5, 30, 120, 600)) | st.integers(1, 300))
    def time_passes(self, seconds: int) -> None:
        """Nothing else happens for a while."""
        self._world.wait_for(asyncio.sleep(seconds), None)

    @precondition(lambda self: bool(self.troubles & set(_FAULTS)))
    @rule(broker=_BROKERS, how=_of_machine("_hows"), seconds=_LASTING)
    def broker_fails(self, broker: str, how: str, seconds: int | None) -> None:
        """A broker refuses connections, is silent, throttles, stumbles or slows down, for a while or until it heals."""
        self._fails(broker, f"{how}{_while(seconds)}", _FAULTS[how], seconds)

    @precondition(lambda self: {"stops", "confirmations"} <= self.troubles)
    @rule(broker=_BROKERS, applied=st.booleans(), seconds=_LASTING)
    def broker_is_killed_at_the_next_write(self, broker: str, applied: bool, seconds: int | None) -> None:
        """The next write is applied or not, without a response, and from then on the broker is unavailable."""
        self.confirmations_are_lost(broker, 1, applied)
        self._fails(broker, f"stops then{_while(seconds)}", Fault.DOWN, seconds)

    @rule(broker=_BROKERS)
    def broker_heals(self, broker: str) -> None:
        """All faults of a broker end; it has its data."""
        self.note(f"the {broker} heals")
        self._broker(broker).heal()

    @precondition(lambda self: "confirmations" in self.troubles)
    @rule(broker=_BROKERS, times=st.integers(1, 3), applied=st.booleans())
    def confirmations_are_lost(self, broker: str, times: int, applied: bool) -> None:
        """The connection breaks during the next few writes, after they were done or before."""
        self.note(f"the {broker} will lose {times} confirmations, {'after' if applied else 'before'} the write")
        fault = Fault.CONFIRM_LOST if applied else Fault.LOST_BEFORE
        self._broker(broker).fail(fault, Operation.SEND | Operation.SETTLE, times=times)

    @precondition(lambda self: "queues" in self.troubles)
    @rule(index=st.integers(0, 7))
    def backlog_queue_fails(self, index: int) -> None:
        """One backlog queue can't be used until the secondary heals."""
        queues = self.pair.backlog_queues
        queue = queues[index % len(queues)].path
        self.note(f"backlog queue {queue} fails")
        self.secondary.fail(Fault.DOWN, entities=[queue])

    @precondition(lambda self: "restart" in self.troubles)
    @rule()
    def process_restarts(self) -> None:
        """The process under test closes its pair, ends, and starts again."""
        self._world.restart()
        self.run(self.process_started())

    @precondition(lambda self: "crash" in self.troubles)
    @rule()
    def process_crashes(self) -> None:
        """The process under test is killed, and starts again; what it only had in memory is gone."""
        self._world.crash()
        self.run(self.process_started())

    @precondition(lambda self: "crash" in self.troubles and self.syphon == "beside")
    @rule()
    def syphon_crashes(self) -> None:
        """The process of the syphon is killed, and starts again."""
        self._world.crash_syphon()

    @precondition(lambda self: "operator" in self.troubles)
    @rule(entity=_of_machine("_paths"), word=st.sampled_from(("mark_healthy", "force_failover", "hold")))
    def operator_says(self, entity: str, word: str) -> None:
        """An operator marks an entity healthy, forces its failover, or holds it failed over."""
        self.note(f"an operator says {word} of {entity}")
        self.run(self._operate(entity_named(entity), word))

    # The end.

    def teardown(self) -> None:
        """Heal everything, let time pass, and judge; only bury it where the example has failed already."""
        try:
            if sys.exc_info()[1] is self._handling:
                self._world.heal()
                self._world.converge()
                if problems := list(Judge(self._world, self.identity).problems()):
                    text = "\n".join(text for text, _ in problems)
                    raise self._world.broken(text, [key for _, keys in problems for key in keys])
        finally:
            self._world.bury()

    # Parts.

    def _paths(self) -> st.SearchStrategy[str]:
        return st.sampled_from([str(entity_named(entity)) for entity in self.entities])

    def _messages(self) -> st.SearchStrategy[Message]:
        return self.messages

    def _hows(self) -> st.SearchStrategy[str]:
        return st.sampled_from([how for how in _FAULTS if how in self.troubles])

    def _fails(self, broker: str, how: str, fault: Fault, seconds: int | None) -> None:
        self.note(f"the {broker} {how}")
        self._broker(broker).fail(fault, delay=0.5)
        if seconds is not None:
            self._world.later(seconds, self.broker_heals, broker)

    def _broker(self, name: str) -> SimulatedBroker:
        return self.primary if name == "primary" else self.secondary

    async def _operate(self, entity: Entity, word: str) -> None:
        getattr(self.pair, word)(entity.path, kind=entity.kind.value)
        if word == "hold":
            self._world.held.add(entity)
        else:
            self._world.held.discard(entity)

    async def _send(self, entity: Entity, messages: Sequence[Message]) -> None:
        sender = self.pair.sender(entity.path, kind=entity.kind.value)
        await asyncio.gather(*(self._send_one(sender, entity, message) for message in messages))

    async def _send_one(self, sender: PairSender, entity: Entity, message: Message) -> None:
        self._numbers += 1
        message = message.with_id(f"m{self._numbers}")
        key = key_of(entity, message)
        ledger, began = self._world.ledger, self._world.now
        ledger.originals[key] = message
        try:
            result: Receipt | SendError = await sender.send(message)
        except SendError as error:
            result = error
        except PairClosed:
            return  # the process is restarted before the message's turn came
        ledger.answers[key].append(Answer(Result.of(result), self._world.now - began))
