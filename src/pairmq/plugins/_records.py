"""What plugins yield: one record per transport or observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pairmq.model import Entity, Message, Receipt, SendError
from pairmq.model.events import Event
from pairmq.transport import Capabilities, Transport


class BrokerControl(Protocol):
    """A broker in this process that a test or the demo can stop and restore.

    Each fault lasts until `restore` or another fault. Messages accepted before a `stop` are kept until `restore`.
    """

    async def stop(self) -> None:
        """Refuse connections and drop the open ones, as a killed process does."""

    async def hang(self) -> None:
        """Accept connections but never respond, as a process under SIGSTOP."""

    async def slow(self, delay: float) -> None:
        """Delay each response by ``delay`` seconds."""

    async def refuse(self, *, kind: str = "unavailable") -> None:
        """Fail each write with an error: ``unavailable``, ``busy`` or ``refused``; reads still work."""

    async def lose_confirms(self, *, applied: bool = True) -> None:
        """Drop the connection instead of confirming writes, after they were applied, or before."""

    async def restore(self) -> None:
        """End every fault: the broker works again, with its messages."""


class LocalServer(Protocol):
    """A real server of the product on this machine, for demos and tests: a process on a free loopback port.

    Every method blocks. The server may end with the thread that called `start` (on Linux it is tied to that thread, so
    that no process is left behind): call `start` in a thread that lives as long as the server.
    """

    @property
    def url(self) -> str:
        """The URL for a transport; unchanged by `kill` and `start`."""

    def start(self) -> None:
        """Start it, with its kept data, and wait until it accepts clients; without effect if it is running.

        Raises:
            RuntimeError: it exited, or was not ready in time; the first line says which, the rest is the end of its
                log.
            OSError: its program can't be run.
        """

    def kill(self) -> None:
        """Kill it with SIGKILL, keeping its data, and wait until it has exited; without effect if it is not running.

        May be called from another thread while `start` waits, which then raises.
        """

    def close(self) -> None:
        """Stop it and remove its data; idempotent."""


@dataclass(frozen=True, slots=True)
class TransportRecord:
    """A transport provided by a plugin.

    Args:
        name: the product in lower case, for people: ``redis``.
        schemes: the URL schemes it serves: ``("redis", "rediss")``; each belongs to one plugin only.
        factory: makes a transport from a URL without IO; raises `ConfigurationError` for an invalid URL. The error must
            not repeat a password. Import the broker's client in it rather than in the plugin's module, which every
            program imports that uses any plugin.
        capabilities: of its transports, as far as known before connecting.
        description: one line for ``pairmq plugins``.
        broker_control: for in-process brokers: returns the control of a URL's broker, for tests and demos.
        local_server: makes a server of the product on this machine, not yet started; raises `FileNotFoundError` that
            says what to install. None if not supported.
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
    """Receives every event of a pair (SPEC 10.1)."""

    def on_event(self, event: Event) -> None:
        """Handle one event; must be fast, as sends wait for it. Exceptions are reported once and then ignored."""

    async def close(self) -> None:
        """Flush; called when the pair closes."""


class SendTrace(Protocol):
    """One call of a sender, from before its messages are passed to a broker until their results are known."""

    @property
    def messages(self) -> Sequence[Message]:
        """The messages to send: the same ones, possibly with a trace's context."""

    def end(self, results: Sequence[Receipt | SendError] | BaseException) -> None:
        """Handle the outcome: a result for each message, or the exception. Called once, in the same task."""


@runtime_checkable
class TracingObserver(Observer, Protocol):
    """An observer that traces the messages themselves, not only events (SPEC 10.1).

    Only it can propagate a trace's context in messages. Without one, a send costs a single comparison more.
    """

    def begin_send(self, pair: str, entity: Entity, messages: Sequence[Message]) -> SendTrace:
        """Start tracing one send, or one operation of a batch.

        Called in the caller's task and context. If it raises, that is reported once, and the messages sent unchanged.

        Args:
            pair: the pair's name, as events carry it.
            entity: the messages' destination.
            messages: as passed by the caller; at least one. Missing message ids are assigned later.
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
