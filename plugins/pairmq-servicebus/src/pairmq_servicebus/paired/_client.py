"""The client without asyncio: a pair in a background thread to send with, and the client's own for everything else."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from azure.core.credentials import TokenCredential
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender

from pairmq import Entity, EntityState, Pair
from pairmq.sync import run
from pairmq.transport import start_task
from pairmq_servicebus.paired._convert import PairedMessageBatch, SingleMessage, make_batch
from pairmq_servicebus.paired._receiving import SharedReceiver, renew, settle_at_broker
from pairmq_servicebus.paired._sending import (
    SHUT_DOWN,
    Handler,
    Messages,
    OnReceipt,
    Sending,
    check_timeout,
    settle,
    taken,
)
from pairmq_servicebus.paired._shared import Own, SharedClient, SharedSender

if TYPE_CHECKING:
    from pairmq.model.events import Event

T = TypeVar("T")

_used: weakref.WeakSet[Portal] = weakref.WeakSet()
_ends: set[asyncio.Task[None]] = set()


class Portal:
    """One client's way to the event loop of `pairmq.sync`, until it closes; not for a forked process.

    What is still open at the exit of the process is closed there. The ``ending`` must be bounded in time and never
    raise.
    """

    def __init__(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._ending = ending
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None  # from the first call on
        self.closed = False

    @property
    def elsewhere(self) -> bool:
        """Whether this process is a fork of the one that made it, where there is nothing to close."""
        return os.getpid() != self._process

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, as `pairmq.sync.run`. Raises `RuntimeError` when closed, and in a forked process."""
        if self.elsewhere:
            raise RuntimeError(
                "this paired client was made before a fork: its connections belong to the parent process. "
                "Make the client in the process that uses it"
            )
        if self.closed:
            raise RuntimeError("the paired client is closed: make a new one")
        return run(self._entered(work))

    def call(self, function: Callable[[], T]) -> T:
        """Call a quick function there, and wait for its result; a callback's thread calls it directly."""
        if self._is_here():
            return function()

        async def work() -> T:
            return function()

        return self.run(work)

    def close(self) -> None:
        """Run the ending, if there was a call. Idempotent; does nothing in a forked process."""
        if self.elsewhere:
            return
        if self._is_here():
            raise RuntimeError("a callback of the paired client closed it: it would wait for itself forever")
        self.closed = True
        if self._loop is not None:
            run(self._end())

    def abandon(self) -> None:
        """Begin to close, without waiting: for the garbage collector, which may run in any thread."""
        if self.elsewhere or self.closed:
            return
        self.closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: start_task(self._end(), keep=_ends))

    async def _entered(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._loop = asyncio.get_running_loop()
        _used.add(self)
        return await work()

    async def _end(self) -> None:
        await self._ending()  # which keeps this one: the exit of the process waits for it

    def _is_here(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return asyncio.get_running_loop() is self._loop
        return False


@atexit.register
def _close_all() -> None:
    for portal in list(_used):
        portal.close()


class PairedServiceBusClient(
    SharedClient[
        TokenCredential,
        ServiceBusReceiver,
        ServiceBusSender,
        "PairedServiceBusSender",
        "PairedServiceBusReceiver",
    ]
):
    """``azure.servicebus.ServiceBusClient`` whose senders fail over to a second broker.

    Senders send to the primary, and to backlog queues of the secondary while the primary is unavailable. Receivers of
    queues with ``continuity`` read these as well; other receivers, and all the rest, are the client's own, on the
    primary. Use one client for the life of a process: each has a pair of its
    own, with its own view of what is healthy.

    The pair opens at ``with``, or at the first message, in the background thread of `pairmq.sync`. Any number of
    threads may use the client; a forked process may not, and gets an error.

    Args:
        fully_qualified_namespace: the primary's, as for ``ServiceBusClient``.
        credential: likewise: a key, a signature, or what gets tokens.
        secondary: a connection string, or the URL of any broker that PairMQ has a transport for: ``redis://…``.
        options: how the pair behaves; else from ``PAIRMQ_*`` variables, with `PairOptions`' defaults.
        on_receipt: called with the receipt of each accepted message, before ``send_messages`` returns.
        admin_endpoint: ``host:port`` or URL of the primary's administration, for local servers.
        secondary_admin_endpoint: likewise of a secondary that is given by its connection string.
        allow_remote_emulator: let a connection string with ``UseDevelopmentEmulator=true`` name another machine.
        kwargs: as for ``ServiceBusClient``; what concerns the network is used for sends as well.

    Raises:
        ConfigurationError: something can't work; it is a `ValueError`.
        TypeError: ``ServiceBusClient`` has no such argument.
    """

    _CLIENT = ServiceBusClient

    def _start(self, own: ServiceBusClient, pair: Pair, entity_path: str | None, on_receipt: OnReceipt | None) -> None:
        super()._start(own, pair, entity_path, on_receipt)
        self._portal = Portal(self._opening.close)
        # A client that is dropped without a close closes its pair; at the exit of the process the portal does.
        weakref.finalize(self, self._portal.abandon).atexit = False

    def state(self, name: str, *, kind: str = "queue") -> EntityState:
        """The state of a queue or topic; healthy before its first message."""
        return self._portal.call(
            lambda: self._pair.state(name, kind=kind) if self._opening.done else EntityState.HEALTHY
        )

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of all queues and topics that this client has sent to."""
        return self._portal.call(lambda: dict(self._pair.states()) if self._opening.done else {})

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Give ``callback`` every event of the pair from now on; returns what ends that.

        Args:
            callback: called in the background thread; must be quick, as sends wait for it, and may not send itself.
        """
        forget = self._portal.call(lambda: self._pair.subscribe(callback))

        def end() -> None:
            if not self._portal.closed:
                self._portal.call(forget)

        return end

    def close(self) -> None:
        """Close the pair, and the client with its receivers. Idempotent; sends in flight get ``close_grace``."""
        self._portal.close()
        if not self._portal.elsewhere:
            self._own.close()

    def __enter__(self) -> Self:
        self._portal.run(self._opening.wait)
        self._own.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_closed(self) -> bool:
        return self._portal.closed

    def _make_sender(self, sending: Sending, own: Own[ServiceBusSender]) -> PairedServiceBusSender:
        return PairedServiceBusSender(self._portal, sending, own, self._on_receipt)

    def _make_receiver(
        self, queue: str, make_own: Callable[[], ServiceBusReceiver], given: Any
    ) -> PairedServiceBusReceiver:
        return PairedServiceBusReceiver(
            self._portal, self._pair, self._opening, queue, self.fully_qualified_namespace, make_own, given
        )


Azures = TypeVar("Azures", ServiceBusSender, ServiceBusReceiver)


class _Handler(Handler[Azures]):
    """One whose way to the pair is in the client's portal."""

    def __init__(self, portal: Portal, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._portal = portal
        # The client's own senders and receivers are not thread-safe.
        self._own_lock = threading.Lock()

    def close(self) -> None:
        """Take no more messages, and release what a receiver has not settled, on both sides. Idempotent."""
        self._closed = True
        if self._portal.elsewhere:
            return  # both connections are the parent's
        if not self._portal.closed:
            with contextlib.suppress(RuntimeError):  # the client is being closed by another thread
                self._portal.run(self._way.close)
        with self._own_lock:
            if self._own is not None:
                self._own.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._portal.closed:
            raise ValueError(SHUT_DOWN)
        super()._check_open()


class PairedServiceBusSender(_Handler[ServiceBusSender], SharedSender[ServiceBusSender]):
    """Sends to a queue or topic of the primary, or to the backlog while the primary is unavailable.

    Made by the client's ``get_queue_sender`` and ``get_topic_sender``. Any number of threads may share one.
    """

    def send_messages(self, message: Messages, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send one message, several, or a batch, and return when all of them are accepted.

        Ctrl-C, and whatever else interrupts the waiting thread, gives the send up: its outcome is unknown then.

        Args:
            message: a ``ServiceBusMessage``, ``AmqpAnnotatedMessage`` or mapping, an iterable of these, or a batch of
                `create_message_batch`. Several need not fit one batch.
            timeout: seconds for everything, the pair's ``send_timeout`` when left out.

        Raises:
            TypeError, ValueError: a pair can't carry it; nothing was sent.
            ServiceBusError: not accepted; the subclasses say why. Of several messages it is a `PairedBatchError`, which
                names those that were not accepted.
            SendOutcomeUnknownError: perhaps accepted, perhaps not.
            RuntimeError: the client was made before a fork, or it is called by its own callback.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_open()
        check_timeout(timeout)
        messages, single = taken(message)
        if messages:
            results = self._portal.run(lambda: self._sending.deliver(messages, timeout, single=single))
            settle(results, self._on_receipt)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> PairedMessageBatch:
        """Make an empty batch of at most 1 MiB, 256 KiB when left out; no I/O: it works without the primary."""
        self._check_open()
        return make_batch(max_size_in_bytes)

    def schedule_messages(
        self, messages: SingleMessage | Iterable[SingleMessage], schedule_time_utc: datetime, **kwargs: Any
    ) -> list[int]:
        """Schedule messages at the primary itself: not covered by failover, as only it can give sequence numbers.

        A message with a ``scheduled_enqueue_time_utc``, given to `send_messages`, is covered. Raises whatever the
        client raises, above all while the primary is unavailable.
        """
        with self._own_lock:
            return self._primary().schedule_messages(messages, schedule_time_utc, **kwargs)  # type: ignore[arg-type]

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], **kwargs: Any) -> None:
        """Cancel what `schedule_messages` has scheduled, at the primary itself."""
        with self._own_lock:
            self._primary().cancel_scheduled_messages(sequence_numbers, **kwargs)

    def __enter__(self) -> Self:
        self._check_open()
        return self


class PairedServiceBusReceiver(_Handler[ServiceBusReceiver], SharedReceiver[ServiceBusReceiver]):
    """Reads a queue with continuity: the primary's, and its lane on the secondary, until both are gone for good.

    Made by the client's ``get_queue_receiver``. Any number of threads may share one.
    """

    def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive messages of either broker; returns as soon as there are any.

        Args:
            max_message_count: at most; ``prefetch_count`` when it is None.
            max_wait_time: seconds to wait for the first, the receiver's when left out, else 60.

        Raises:
            ServiceBusError: neither broker can be read.
            ValueError: an argument is invalid, or the receiver or the client is closed.
        """
        count, wait = self._asked(max_message_count, max_wait_time)
        if not count:
            return []
        return [self._made(each) for each in self._portal.run(lambda: self.reading.receive(count, wait))]

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        self._check_open()
        return self

    def __next__(self) -> ServiceBusReceivedMessage:
        self._check_open()
        found = self._portal.run(lambda: self.reading.next(self._max_wait_time))
        if found is None:
            raise StopIteration
        return self._made(found)

    next = __next__

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove a message from the broker that it came from.

        Raises:
            MessageLockLostError: its lock has ended; it is redelivered.
            MessageAlreadySettled: it was settled before.
            ServiceBusError: that broker is unavailable; it may be redelivered.
        """
        self._settle("complete", message)

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Release a message for redelivery. Raises as `complete_message`."""
        self._settle("abandon", message)

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move a message to the dead-letter queue of its queue or lane. Raises as `complete_message`."""
        self._settle("dead_letter", message, reason, error_description)

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Refuse to defer a message that this receiver has read. Raises `ValueError`."""
        self._settle("defer", message)

    def renew_message_lock(self, message: ServiceBusReceivedMessage, **kwargs: Any) -> datetime | None:
        """Renew a message's lock; returns until when it lasts. Raises as `complete_message`."""
        if self._is_paired(message, "renew"):
            return self._portal.run(lambda: renew(message))
        with self._own_lock:
            return self._primary().renew_message_lock(message, **kwargs)

    def _settle(self, action: str, message: ServiceBusReceivedMessage, *arguments: str | None) -> None:
        if self._is_paired(message, action):
            self._portal.run(lambda: settle_at_broker(message, action, *arguments))
        else:
            with self._own_lock:
                getattr(self._primary(), f"{action}_message")(message, *arguments)

    def peek_messages(self, max_message_count: int = 1, **kwargs: Any) -> list[ServiceBusReceivedMessage]:
        """Look at messages of the primary's queue; as the client's own, which it is."""
        with self._own_lock:
            return self._primary().peek_messages(max_message_count, **kwargs)

    def receive_deferred_messages(
        self, sequence_numbers: int | list[int], **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        """Receive messages that another receiver has deferred at the primary; as the client's own, which it is."""
        with self._own_lock:
            return self._primary().receive_deferred_messages(sequence_numbers, **kwargs)

    def __enter__(self) -> Self:
        self._check_open()
        self._portal.run(self.reading.open)
        return self
