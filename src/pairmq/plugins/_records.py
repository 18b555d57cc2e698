"""What plugins yield: one record per transport or observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pairmq.model import Entity, Message, Receipt, SendError
from pairmq.model.events import Event
from pairmq.model.records import Values
from pairmq.transport import Capabilities, Transport


class BrokerControl(Protocol):
    """A broker in this process that a test or the demo can take away and bring back.

    Each fault lasts until `restore` or another fault. What was accepted before a `stop` is there after `restore`.
    """

    async def stop(self) -> None:
        """Refuse connections and drop the open ones, as a killed process does."""

    async def hang(self) -> None:
        """Take connections and never answer, as a process under SIGSTOP does."""

    async def slow(self, delay: float) -> None:
        """Answer each call ``delay`` seconds late."""

    async def refuse(self, *, kind: str = "unavailable") -> None:
        """Answer each write with an error: ``unavailable``, ``busy`` or ``refused``; reads go on."""

    async def lose_confirms(self, *, applied: bool = True) -> None:
        """Drop the connection instead of confirming writes, after they were applied, or before."""

    async def restore(self) -> None:
        """End every fault: the broker is as it was, with its messages."""


class LocalServer(Protocol):
    """A real server of the product on this machine, for demos and trials: a process on a free loopback port.

    Every method blocks. The server may end with the thread that called `start` (Linux ties it to that thread, so that
    nothing is left behind): call `start`, each time, in one thread that lives as long as the server shall.
    """

    @property
    def url(self) -> str:
        """The address for a transport; it stays the same over `kill` and `start`."""

    def start(self) -> None:
        """Start it, with the data that it kept, and wait until it takes clients; one that runs is left alone.

        Raises:
            RuntimeError: it ended, or was not ready in time; the first line says so, the rest is the end of its log.
            OSError: its program can't be run.
        """

    def kill(self) -> None:
        """End it with SIGKILL, keeping its data, and wait until it is gone; without effect when it does not run.

        Another thread may call it while `start` waits, which then raises.
        """

    def close(self) -> None:
        """End it and remove its data; idempotent."""


@dataclass(frozen=True, slots=True)
class TransportRecord:
    """A transport that a plugin brings.

    Args:
        name: the product in lower case, for people: ``redis``.
        schemes: the URL schemes it serves: ``("redis", "rediss")``; each belongs to one plugin only.
        factory: makes a transport of a URL without IO; raises `ConfigurationError` for a URL that can't work. The error
            must not repeat a password.
        capabilities: what its transports can do, as far as that is known before connecting.
        description: one line for ``pairmq plugins``.
        broker_control: for in-process brokers: gives the control of the broker that a URL names, for tests and demos.
        local_server: makes a server of the product on this machine, not started yet; raises `FileNotFoundError` that
            says what to install. None where there is no such thing.
    """

    name: str
    schemes: tuple[str, ...]
    factory: Callable[[str], Transport]
    capabilities: Capabilities
    description: str = ""
    broker_control: Callable[[str], BrokerControl] | None = None
    local_server: Callable[[], LocalServer] | None = None


@runtime_checkable
class Observer(Protocol):
    """Sees every event of a pair (SPEC 10.1)."""

    def on_event(self, event: Event) -> None:
        """Take one event; quickly, as sends wait for it. What it raises is reported once and then ignored."""

    async def close(self) -> None:
        """Write out what it still holds; called when the pair closes."""


@runtime_checkable
class ValuesObserver(Observer, Protocol):
    """An observer that takes sends as bare values, as to make an event of each would cost more than all else."""

    def on_values(self, values: Values) -> None:
        """Take a `SendCompleted` that was not made yet, in the place of `on_event`, and like it."""


class SendTrace(Protocol):
    """One call of a sender, from before its messages are given to a broker until their results are known."""

    @property
    def messages(self) -> Sequence[Message]:
        """What is sent in the place of what was given: the same messages, which may carry a trace's context."""

    def end(self, results: Sequence[Receipt | SendError] | BaseException) -> None:
        """Take what came of it: a result for each message, or what the call raised. Called once, in the same task."""


@runtime_checkable
class TracingObserver(Observer, Protocol):
    """An observer that follows the messages themselves, and not only what is told of them (SPEC 10.1).

    Only it can let a trace's context travel with a message. Without one, a send pays for a single comparison.
    """

    def begin_send(self, pair: str, entity: Entity, messages: Sequence[Message]) -> SendTrace:
        """Begin to follow one send, or one operation of a batch.

        Called in the task of the caller, so that what it finds in its context is the caller's. If it raises, that is
        reported once, and the messages are sent as they are.

        Args:
            pair: the pair's name, as events carry it.
            entity: where the messages belong.
            messages: as the caller gave them; at least one. One that has no message id is given it later.
        """

    def on_message_event(self, event: Event, message: Message) -> None:
        """Take an event once more, with the message that it is about, as it was sent.

        These are the events of what the syphon moved or dead-lettered, and of what a receiver settled. It comes right
        after `on_event`, and like it.
        """


@dataclass(frozen=True, slots=True)
class ObserverRecord:
    """An observer that a plugin brings.

    Args:
        name: in lower case, for people.
        factory: makes one observer per pair.
        description: one line for ``pairmq plugins``.
        automatic: whether every pair gets one without asking for it by name.
    """

    name: str
    factory: Callable[[], Observer]
    description: str = ""
    automatic: bool = False
